// SPDX-License-Identifier: Apache-2.0
// Runs an op and passes only if it detects a mutation. The build links this file with one mutated kernel source at a
// time.

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/sample/sample.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/emulation/emulator.h"
#include "tests/reference/masked_attention.h"
#include "tests/reference/norms.h"

using namespace slipstream;
using namespace slipstream::kernels;
using emulation::DeviceMemory;

namespace {

LaunchContext context_of_cuda() {
  LaunchContext context;
  context.kind = DeviceKind::cuda;
  return context;
}

void fill(const DeviceMemory& memory, uint32_t seed = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < memory.size_bytes() / 2; ++i)
    reinterpret_cast<bfloat16*>(memory.data())[i] = bfloat16(normal(generator));
}

template <typename T>
T* at(const DeviceMemory& memory) {
  return reinterpret_cast<T*>(memory.data());
}

/// The first of the values that differs from the expected one by more than `tolerance` of the largest; empty if none.
template <typename T>
std::string difference(const std::string& name, const T* got, const reference::Doubles& expected, double tolerance) {
  double largest = 0.0;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value = static_cast<double>(static_cast<float>(got[i]));
    if (!(std::abs(value - expected[i]) <= tolerance * largest))
      return fmt::format("{} of {} for {}", name, value, expected[i]);
  }
  return {};
}

/// Attention with a window, documents and dropout, forward and backward: tiles at each of their ends.
std::string run_masks(LaunchContext& context, bool hopper) {
  const reference::AttentionShape shape{1, hopper ? 400 : 200, 2, 1, 64};
  const reference::Masks masks = reference::masks_of(shape, hopper ? 200 : 40, hopper ? 390 : 150, 0.3);
  const int64_t T = shape.tokens, width = shape.width(), out_width = shape.out_width();
  const auto bytes = [](int64_t elems, size_t size) { return static_cast<size_t>(elems) * size; };
  DeviceMemory qkv(bytes(T * width, 2), "qkv"), dout(bytes(T * out_width, 2), "dout"),
      out(bytes(T * out_width, 2), "out"), lse(bytes(T * 2, 4), "lse"), dqkv(bytes(T * width, 2), "dqkv"),
      workspace(bytes(T * 2 + T * out_width, 4), "workspace"), begins(bytes(T, 4), "begins"), samples(8, "samples");
  fill(qkv, 1), fill(dout, 2);
  std::memcpy(begins.data(), masks.begins.data(), begins.size_bytes());
  *at<DropoutSample>(samples) = {masks.step, masks.sequences[0]};
  const auto doubles_of = [](const DeviceMemory& memory) {
    reference::Doubles values;
    for (size_t i = 0; i < memory.size_bytes() / 2; ++i)
      values.push_back(static_cast<double>(static_cast<float>(at<bfloat16>(memory)[i])));
    return values;
  };
  const reference::Doubles x = doubles_of(qkv), d = doubles_of(dout);
  const reference::PackedAttention expected = reference::masked_attention(shape, x, d, 0.125, masks);
  const AttentionDropout dropout{.samples = at<DropoutSample>(samples), .key = masks.key, .rate = masks.rate};
  const auto set = [&](auto& all) {
    const auto* q = at<bfloat16>(qkv);
    all.q = q, all.k = q + 128, all.v = q + 192, all.out = out.data(), all.lse = at<float>(lse), all.scale = 0.125f;
    all.batch = all.kv_heads = 1, all.heads = 2, all.tokens = T, all.head_dim = 64, all.dtype = DType::bf16;
    all.q_stride = all.kv_stride = width, all.out_stride = out_width, all.window = masks.window;
    all.document_begins = at<int32_t>(begins), all.dropout = &dropout;
  };
  AttentionForward forward;
  set(forward);
  const AttentionBlockForward all_keys{.all = forward, .block = {0, T, 0, T}};
  if (!(hopper ? attention_forward_hopper(context, all_keys) : attention_forward_mma(context, all_keys))) return {};
  if (auto seen = difference("an lse", at<float>(lse), expected.lse, 1e-3); !seen.empty()) return seen;
  if (auto seen = difference("an out", at<bfloat16>(out), expected.out, 0x1p-6); !seen.empty()) return seen;
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t t = 0; t < T; ++t) {
      double sum = 0.0;
      for (int64_t e = 0; e < 64; ++e) {
        const auto i = static_cast<size_t>(t * out_width + h * 64 + e);
        sum += d[i] * expected.out[i];
      }
      at<float>(workspace)[h * T + t] = static_cast<float>(sum);
    }
  AttentionBackward backward;
  set(backward);
  auto* const to = at<bfloat16>(dqkv);
  backward.dout = dout.data(), backward.dq = to, backward.dk = to + 128, backward.dv = to + 192;
  backward.dq_stride = backward.dkv_stride = width;
  backward.workspace = at<float>(workspace);
  const AttentionBlockBackward gradients{.all = backward, .block = {0, T, 0, T}};
  if (!(hopper ? attention_backward_hopper(context, gradients, backward.workspace)
               : attention_backward_mma(context, gradients, backward.workspace)))
    return {};
  return difference("a gradient", to, expected.dqkv, 0x1p-5);
}

/// Tokens that are as likely as each other share the random numbers equally.
std::string run_sample(LaunchContext& context) {
  constexpr int64_t kVocab = 600;
  constexpr int32_t kTexts = 24;
  struct Case {
    SamplingOptions options;
    float fall = 0;  // of the logit from token to token
    int32_t holes = 0;
    uint64_t kept = kVocab;
  };
  for (const Case& c : {Case{.options = {.temperature = 1, .top_p = 0.5}, .kept = 300},
                        Case{.options = {.temperature = 1e6, .top_k = 5}, .fall = 1, .kept = 5},
                        Case{.options = {.temperature = 1}, .holes = 100, .kept = 500}}) {
    DeviceMemory logits(kTexts * kVocab * 4, "logits"), texts(kTexts * sizeof(TextState), "texts"),
        sequences(kTexts * 4, "sequences"), chosen(kTexts * 4, "chosen"), holes(token_set_words(kVocab) * 4, "holes");
    const Philox random(1, "mutants");
    std::memset(holes.data(), 0, holes.size_bytes());
    for (int32_t i = 0; i < c.holes; ++i) at<uint32_t>(holes)[i / 32] |= 1u << i % 32;
    for (int32_t t = 0; t < kTexts; ++t) {
      at<TextState>(texts)[t] = {.text = static_cast<uint32_t>(t)};
      at<int32_t>(sequences)[t] = t;
      for (int64_t i = 0; i < kVocab; ++i) at<float>(logits)[t * kVocab + i] = -c.fall * static_cast<float>(i);
    }
    sample_cuda(context, {.logits = at<float>(logits),
                          .rows = kTexts,
                          .vocab = kVocab,
                          .stride = kVocab,
                          .options = c.options,
                          .key = random.key(),
                          .holes = at<uint32_t>(holes),
                          .sequences = at<int32_t>(sequences),
                          .text = at<TextState>(texts),
                          .chosen = at<int32_t>(chosen)});
    for (int32_t t = 0; t < kTexts; ++t) {
      const auto expected = c.holes + static_cast<int32_t>(random.below(uint64_t(t) << 32, c.kept));
      if (at<int32_t>(chosen)[t] != expected) return fmt::format("token {} for {}", at<int32_t>(chosen)[t], expected);
    }
  }
  return {};
}

/// The detected error; empty if none.
std::string run(const std::string& op) {
  LaunchContext context = context_of_cuda();
  if (op == "masks") return run_masks(context, false);
  if (op == "hopper_masks") {
    const emulation::Capability hopper(90);
    return run_masks(context, true);
  }
  if (op == "sample") return run_sample(context);
  if (op == "swiglu") {
    DeviceMemory gate_up(3 * 2 * 16 * 2, "gate_up"), y(3 * 16 * 2, "y");
    fill(gate_up);
    swiglu_forward_cuda(context, {gate_up.data(), y.data(), 3, 16, DType::bf16});
  } else if (op == "cross_entropy") {
    // A thread has one or two whole packs of 8 logits; the last pack is not whole.
    constexpr int64_t kVocab = 5001, kStride = 5008;
    DeviceMemory logits(kStride * 2, "logits"), target(4, "targets"), losses(4, "row_losses"), sum(8, "sum");
    fill(logits);
    std::memset(target.data(), 0, 4);
    double weights = 0.0;
    const auto logit = [&](int64_t i) { return static_cast<double>(static_cast<float>(at<bfloat16>(logits)[i])); };
    for (int64_t i = 0; i < kVocab; ++i) weights += std::exp(logit(i));
    const double expected = std::log(weights) - logit(0);
    cross_entropy_cuda(context, {logits.data(), at<int32_t>(target), at<double>(sum), at<float>(losses), 1, kVocab,
                                 kStride, 1.0f, DType::bf16, true});
    const double got = *at<double>(sum);
    if (!(std::abs(got - expected) < 1e-4)) return fmt::format("a loss of {} for {}", got, expected);
    double all = 0.0;  // of the gradient: the probabilities add up to 1
    for (int64_t i = 0; i < kStride; ++i) all += logit(i);
    if (!(std::abs(all) < 1e-2)) return fmt::format("a gradient with the sum {}", all);
  } else if (op == "norm") {
    // Rows that one warp processes, 39 for the four groups of a block, and rows that four warps share.
    for (const auto& [rows, width] : {std::array<int64_t, 2>{39, 776}, std::array<int64_t, 2>{3, 2056}}) {
      DeviceMemory dy(static_cast<size_t>(rows * width * 2), "dy"), x(static_cast<size_t>(rows * width * 2), "x"),
          dx(static_cast<size_t>(rows * width * 2), "dx"), weight(static_cast<size_t>(width * 2), "weight"),
          mean(static_cast<size_t>(rows * 4), "mean"), inv(static_cast<size_t>(rows * 4), "inv"),
          dweight(static_cast<size_t>(width * 4), "dweight"), dbias(static_cast<size_t>(width * 4), "dbias"),
          sums(static_cast<size_t>(width * 4), "dx_sums");
      fill(dy, 1), fill(x, 2), fill(weight, 3);
      const auto doubles = [](const DeviceMemory& memory, int64_t elems) {
        std::vector<double> values;
        for (int64_t i = 0; i < elems; ++i)
          values.push_back(static_cast<double>(static_cast<float>(at<bfloat16>(memory)[i])));
        return values;
      };
      const auto of_x = doubles(x, rows * width), of_weight = doubles(weight, width);
      const auto forward = reference::norm(of_x, of_weight, std::vector<double>(of_weight.size()), 1e-5, true);
      const auto expected = reference::norm_gradients(doubles(dy, rows * width), of_x, of_weight, 1e-5, true);
      for (int64_t r = 0; r < rows; ++r) {
        at<float>(mean)[r] = static_cast<float>(forward.mean[static_cast<size_t>(r)]);
        at<float>(inv)[r] = static_cast<float>(forward.inv[static_cast<size_t>(r)]);
      }
      layer_norm_backward_cuda(context, {.dy = dy.data(),
                                         .x = x.data(),
                                         .weight = weight.data(),
                                         .mean = at<float>(mean),
                                         .inv_std = at<float>(inv),
                                         .dx = dx.data(),
                                         .dweight = at<float>(dweight),
                                         .dbias = at<float>(dbias),
                                         .rows = rows,
                                         .width = width,
                                         .dtype = DType::bf16,
                                         .dx_sums = at<float>(sums)});
      for (int64_t i = 0; i < width; ++i) {
        const double got = static_cast<double>(at<float>(dweight)[i]), want = expected.dweight[static_cast<size_t>(i)];
        if (!(std::abs(got - want) < 1e-3)) return fmt::format("a dweight of {} for {}", got, want);
        double all = 0.0;
        for (int64_t r = 0; r < rows; ++r) all += expected.dx[static_cast<size_t>(r * width + i)];
        const double sum = static_cast<double>(at<float>(sums)[i]);
        if (!(std::abs(sum - all) < 1e-3)) return fmt::format("a sum of dx of {} for {}", sum, all);
      }
      const auto of_dx = doubles(dx, rows * width);
      for (size_t i = 0; i < of_dx.size(); ++i)
        if (!(std::abs(of_dx[i] - expected.dx[i]) < 0.02 + 0.01 * std::abs(expected.dx[i])))
          return fmt::format("a dx of {} for {}", of_dx[i], expected.dx[i]);
    }
  } else if (op == "embedding") {
    // Id 7 has 650 rows, which blocks add in tiles and in two slices of the width; two warps of a block list them. Id 9
    // has 65 rows, one more than a warp adds. All other ids have fewer.
    constexpr int64_t kRows = 1300, kWidth = 72, kVocab = 40;
    DeviceMemory ids(kRows * 4, "ids"), dy(kRows * kWidth * 2, "dy"), dtable(kVocab * kWidth * 4, "dtable");
    fill(dy, 1);
    for (int32_t i = 0; i < kRows; ++i) at<int32_t>(ids)[i] = i % 2 == 0 ? 7 : i < 130 ? 9 : 10 + i % 30;
    std::vector<float> expected(kVocab * kWidth);
    for (int64_t i = 0; i < kRows * kWidth; ++i)
      expected[static_cast<size_t>(at<int32_t>(ids)[i / kWidth] * kWidth + i % kWidth)] +=
          static_cast<float>(at<bfloat16>(dy)[i]);
    embedding_backward_cuda(context, {.ids = at<int32_t>(ids),
                                      .dy = dy.data(),
                                      .dtable = at<float>(dtable),
                                      .rows = kRows,
                                      .width = kWidth,
                                      .vocab = kVocab,
                                      .dtype = DType::bf16});
    for (size_t i = 0; i < expected.size(); ++i)
      if (at<float>(dtable)[i] != expected[i])
        return fmt::format("a row of {} for {}", at<float>(dtable)[i], expected[i]);
  } else if (op == "tile") {
    // A tile for wide heads and one more row: no memory follows the last row.
    constexpr int64_t kHead = 136, kTokens = 17;
    DeviceMemory qkv(kTokens * 3 * kHead * 2, "qkv"), out(kTokens * kHead * 2, "out"), lse(kTokens * 4, "lse");
    fill(qkv);
    const auto* x = reinterpret_cast<const bfloat16*>(qkv.data());
    AttentionForward args;
    args.q = x, args.k = x + kHead, args.v = x + 2 * kHead, args.out = out.data(), args.lse = at<float>(lse);
    args.batch = args.heads = args.kv_heads = 1, args.tokens = kTokens, args.head_dim = kHead, args.dtype = DType::bf16;
    args.q_stride = args.kv_stride = 3 * kHead, args.out_stride = kHead;
    attention_forward_cuda(context, args);
  } else if (op == "hopper") {
    const emulation::Capability hopper(90);
    constexpr int64_t kHead = 128, kTokens = 8;
    DeviceMemory qkv(kTokens * 3 * kHead * 2, "qkv"), out(kTokens * kHead * 2, "out"), lse(kTokens * 4, "lse");
    fill(qkv);
    const auto* x = reinterpret_cast<const bfloat16*>(qkv.data());
    AttentionForward all;
    all.q = x, all.k = x + kHead, all.v = x + 2 * kHead, all.out = out.data(), all.lse = at<float>(lse);
    all.batch = all.heads = all.kv_heads = 1, all.tokens = kTokens, all.head_dim = kHead, all.dtype = DType::bf16;
    all.q_stride = all.kv_stride = 3 * kHead, all.out_stride = kHead;
    if (!attention_forward_hopper(context,
                                  {.all = all, .block = {0, kTokens, 0, kTokens, true}, .first = true, .last = true}))
      return "it does not run";
  } else if (op == "hopper_backward") {
    // Three blocks of 128 keys for two multiprocessors: blocks that began in another order would wait for the third.
    const emulation::Capability hopper(90);
    constexpr int64_t kHead = 64, kTokens = 3 * 128;
    DeviceMemory qkv(kTokens * 3 * kHead * 2, "qkv"), dout(kTokens * kHead * 2, "dout"), lse(kTokens * 4, "lse"),
        gradients(kTokens * 3 * kHead * 2, "gradients");
    fill(qkv), fill(dout, 2);
    std::memset(lse.data(), 0, lse.size_bytes());
    const auto* x = reinterpret_cast<const bfloat16*>(qkv.data());
    auto* const dx = reinterpret_cast<bfloat16*>(gradients.data());
    AttentionBackward all;
    all.dout = dout.data(), all.q = x, all.k = x + kHead, all.v = x + 2 * kHead, all.lse = at<float>(lse);
    all.dq = dx, all.dk = dx + kHead, all.dv = dx + 2 * kHead, all.dtype = DType::bf16;
    all.batch = all.heads = all.kv_heads = 1, all.tokens = kTokens, all.head_dim = kHead, all.out_stride = kHead;
    all.q_stride = all.kv_stride = all.dq_stride = all.dkv_stride = 3 * kHead;
    DeviceMemory workspace(static_cast<size_t>(attention_backward_workspace_elems(all)) * 4, "workspace");
    std::memset(workspace.data(), 0, workspace.size_bytes());
    all.workspace = at<float>(workspace);
    if (!attention_backward_hopper(context, {.all = all, .block = {0, kTokens, 0, kTokens, true}}, all.workspace))
      return "it does not run";
  } else {
    // A query sees two keys, one after the other: lse shows both scores.
    DeviceMemory qkv(2 * 3 * 64 * 2, "qkv"), out(2 * 64 * 2, "out"), lse(2 * 4, "lse"), carried(2 * 64 * 4, "carried"),
        maximum(2 * 4, "maximum"), sum(2 * 4, "sum");
    fill(qkv);
    const auto* x = reinterpret_cast<const bfloat16*>(qkv.data());
    double weights = 0.0;
    for (int key = 0; key < 2; ++key) {
      double score = 0.0;
      for (int e = 0; e < 64; ++e)
        score += static_cast<double>(static_cast<float>(x[e])) *
                 static_cast<double>(static_cast<float>(x[192 * key + 64 + e]));
      weights += std::exp(0.125 * score);
    }
    AttentionForward all;
    all.q = x, all.k = x + 64, all.v = x + 128, all.out = out.data(), all.lse = at<float>(lse), all.scale = 0.125f;
    all.batch = all.heads = all.kv_heads = 1, all.tokens = 2, all.head_dim = 64, all.dtype = DType::bf16;
    all.q_stride = all.kv_stride = 192, all.out_stride = 64;
    for (int key = 0; key < 2; ++key)
      if (!attention_forward_mma(context, {.all = all,
                                           .block = {0, 1, key, 1, key == 0},
                                           .carried = {at<float>(carried), at<float>(maximum), at<float>(sum)},
                                           .first = key == 0,
                                           .last = key == 1}))
        return {};
    const double got = static_cast<double>(*at<float>(lse)), expected = std::log(weights);
    if (std::isfinite(got) && std::abs(got - expected) > 1e-3) return fmt::format("an lse of {} for {}", got, expected);
  }
  return {};
}

}  // namespace

/// Usage: OP WORDS... : the detected error must contain one of WORDS.
int main(int count, char** words) {
  std::string seen;
  try {
    seen = run(words[1]);
  } catch (const emulation::Error& error) {
    seen = error.what();
  }
  fmt::print("{}\n", seen.empty() ? "nothing was seen" : seen);
  // Without WORDS this is the original, in which no error may be detected.
  if (count == 2) return seen.empty() ? 0 : 1;
  for (int i = 2; i < count; ++i)
    if (seen.find(words[i]) != std::string::npos) return 0;
  return 1;
}
