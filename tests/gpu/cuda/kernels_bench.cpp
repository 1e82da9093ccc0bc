// SPDX-License-Identifier: Apache-2.0
// Every kernel of a GPT-2 124M step on a card (and the general ones of Llama), at sizes beyond the cache, beside the card's own copy and product.
//
// Times are of CUDA events around enough calls to fill 20 ms; the median of seven such turns, and the spread between the fastest
// and the slowest. Data is random: products of zeros run faster. A causal attention counts half the operations, backward 2.5 times
// forward, as its papers do. Rows "op,shape,us,spread,tflops,gbytes" go to the file that is named as argument: scripts/bench_gpu_pytorch.py
// prints PyTorch's beside them.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/philox.h"
#include "engine/device/cuda/cuda_check.h"
#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/cast/cast.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cuda/workspace.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu/gelu.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/residual/residual.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sum_squares/sum_squares.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/gpu/cuda/card.h"

using namespace slipstream;
using namespace slipstream::kernels;

namespace {

constexpr int kTurns = 7;
constexpr double kTurnMs = 20;
constexpr int64_t kBatch = 32, kTokens = 1024, kWidth = 768, kHidden = 3072, kVocab = 50304, kHeads = 12;

class CardBench {
 public:
  explicit CardBench(const char* csv) : csv_(csv ? std::fopen(csv, "w") : nullptr) {
    SLIP_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    SLIP_CUDA(cudaEventCreate(&begin_));
    SLIP_CUDA(cudaEventCreate(&end_));
    prepare_stream(stream_);
    context_.kind = DeviceKind::cuda;
    context_.native_stream = stream_;
    if (csv_) std::fprintf(csv_, "op,shape,us,spread,tflops,gbytes\n");
  }
  ~CardBench() {
    free_all();
    release_stream(stream_);
    if (csv_) std::fclose(csv_);
  }
  CardBench(const CardBench&) = delete;
  CardBench& operator=(const CardBench&) = delete;

  void run() {
    ceilings();
    products();
    attention_of(kHeads, kHeads, 64, kBatch, kTokens);
    attention_of(16, 16, 128, 8, 2048);
    attention_of(16, 4, 64, 16, kTokens);
    norms();
    elementwise();
    embedding_and_loss();
    update();
  }

 private:
  void* take(int64_t size_bytes) {
    void* memory = nullptr;
    SLIP_CUDA(cudaMalloc(&memory, static_cast<size_t>(size_bytes)));
    taken_.push_back(memory);
    return memory;
  }
  void free_all() {
    for (void* memory : taken_) SLIP_CUDA_QUIETLY(cudaFree(memory));
    taken_.clear();
  }
  /// About normal, repeating after a few megabytes.
  template <typename T = bfloat16>
  T* values(int64_t elems, float scale = 1) {
    const int64_t piece = std::min<int64_t>(elems, (4 << 20) + 7);
    const Philox random(1, "bench");
    std::vector<T> host(static_cast<size_t>(piece));
    for (int64_t i = 0; i < piece; ++i) host[static_cast<size_t>(i)] = T(scale * random.normal(static_cast<uint64_t>(i)));
    auto* device = static_cast<T*>(take(elems * static_cast<int64_t>(sizeof(T))));
    for (int64_t at = 0; at < elems; at += piece)
      SLIP_CUDA(cudaMemcpy(device + at, host.data(), static_cast<size_t>(std::min(piece, elems - at)) * sizeof(T), cudaMemcpyHostToDevice));
    return device;
  }
  int32_t* ids(int64_t count, int64_t below) {
    const Philox random(2, "ids");
    std::vector<int32_t> host(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) host[static_cast<size_t>(i)] = static_cast<int32_t>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(below)));
    auto* device = static_cast<int32_t*>(take(4 * count));
    SLIP_CUDA(cudaMemcpy(device, host.data(), static_cast<size_t>(4 * count), cudaMemcpyHostToDevice));
    return device;
  }

  float ms_of(int calls, const std::function<void()>& body) {
    SLIP_CUDA(cudaEventRecord(begin_, stream_));
    for (int i = 0; i < calls; ++i) body();
    SLIP_CUDA(cudaEventRecord(end_, stream_));
    SLIP_CUDA(cudaEventSynchronize(end_));
    float ms = 0;
    SLIP_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
    return ms;
  }
  /// Prints one row; returns the median in us.
  double measure(const char* op, const std::string& shape, double flops, double bytes, const std::function<void()>& body) {
    for (int i = 0; i < 3; ++i) body();
    const int calls = std::clamp(static_cast<int>(kTurnMs / std::max(1e-3f, ms_of(1, body))), 1, 2000);
    std::vector<double> us;
    for (int turn = 0; turn < kTurns; ++turn) us.push_back(1e3 * ms_of(calls, body) / calls);
    std::sort(us.begin(), us.end());
    const double median = us[kTurns / 2], spread = us.back() / us.front() - 1;
    const double tflops = flops / median / 1e6, gbytes = bytes / median / 1e3;
    std::printf("%-24s %-26s %10.1f us +-%4.1f %%  %8.1f TFLOP/s  %7.0f GB/s", op, shape.c_str(), median, 100 * spread, tflops, gbytes);
    if (copy_gbytes_ > 0) std::printf("  %4.0f %% of copy", 100 * gbytes / copy_gbytes_);
    std::printf("\n");
    std::fflush(stdout);
    if (csv_) {
      std::fprintf(csv_, "%s,%s,%.6g,%.3g,%.6g,%.6g\n", op, shape.c_str(), median, spread, tflops, gbytes);
      std::fflush(csv_);
    }
    return median;
  }
  double measure(const char* op, const std::string& shape, const Cost& cost, const std::function<void()>& body) {
    return measure(op, shape, static_cast<double>(cost.flops), static_cast<double>(cost.bytes), body);
  }

  void ceilings() {
    constexpr int64_t kBytes = int64_t{1} << 30, kN = 8192;
    auto *from = values(kBytes / 2), *to = values(kBytes / 2);
    const double us = measure("copy", "1 GiB", 0, 2.0 * kBytes, [&] { SLIP_CUDA(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream_)); });
    copy_gbytes_ = 2.0 * kBytes / us / 1e3;
    free_all();
    const MatmulForward square{.x = values(kN * kN), .weight = values(kN * kN), .y = take(2 * kN * kN), .rows = kN, .in = kN, .out = kN, .dtype = DType::bf16};
    measure("matmul_forward", "8192 x 8192 x 8192", matmul_forward_cost(square), [&] { matmul_forward(context_, square); });
    free_all();
  }

  void products() {
    const int64_t rows = kBatch * kTokens;
    const struct {
      const char* name;
      int64_t in, out, rows;
      bool gelu;
    } layers[] = {{"qkv", kWidth, 3 * kWidth, rows, false}, {"projection", kWidth, kWidth, rows, false}, {"up", kWidth, kHidden, rows, true},
                  {"down", kHidden, kWidth, rows, false}, {"head", kWidth, kVocab, rows / 4, false}};
    for (const auto& l : layers) {
      const std::string shape = fmt::format("{} {} x {} x {}", l.name, l.rows, l.in, l.out);
      auto *x = values(l.rows * l.in), *w = values(l.out * l.in, 0.02f), *y = values(l.rows * l.out), *dx = values(l.rows * l.in), *bias = values(l.out);
      auto *dw = values<float>(l.out * l.in), *db = values<float>(l.out);
      void* pre = l.gelu ? take(2 * l.rows * l.out) : nullptr;
      const bool head = l.out == kVocab;
      const MatmulForward forward{.x = x, .weight = w, .bias = head ? nullptr : bias, .y = y, .pre_activation = pre, .rows = l.rows, .in = l.in, .out = l.out, .dtype = DType::bf16};
      measure("matmul_forward", shape, matmul_forward_cost(forward), [&] { matmul_forward(context_, forward); });
      const MatmulBackwardInput input{.dy = y, .weight = w, .dx = dx, .rows = l.rows, .in = l.in, .out = l.out, .dtype = DType::bf16};
      measure("matmul_backward_input", shape, matmul_backward_input_cost(input), [&] { matmul_backward_input(context_, input); });
      const MatmulBackwardWeight weight{.x = x, .dy = y, .dweight = dw, .dbias = head ? nullptr : db, .rows = l.rows, .in = l.in, .out = l.out, .dtype = DType::bf16, .accumulate = true};
      measure("matmul_backward_weight", shape, matmul_backward_weight_cost(weight), [&] { matmul_backward_weight(context_, weight); });
      free_all();
    }
  }

  void attention_of(int64_t heads, int64_t kv_heads, int64_t head, int64_t batch, int64_t tokens) {
    const int64_t rows = batch * tokens, width = (heads + 2 * kv_heads) * head, out_width = heads * head;
    const std::string shape = fmt::format("B{} T{} H{}/{} x {}", batch, tokens, heads, kv_heads, head);
    const double flops = 2.0 * static_cast<double>(batch * heads * tokens) * static_cast<double>(tokens * head);  // causal: half of 4
    auto *qkv = values(rows * width), *dqkv = values(rows * width), *out = values(rows * out_width), *dout = values(rows * out_width);
    auto* lse = values<float>(rows * heads);
    const float scale = 1.0f / std::sqrt(static_cast<float>(head));
    const AttentionForward forward{.q = qkv, .k = qkv + out_width, .v = qkv + out_width + kv_heads * head, .out = out, .lse = lse, .batch = batch, .tokens = tokens,
                                   .heads = heads, .kv_heads = kv_heads, .head_dim = head, .q_stride = width, .kv_stride = width, .out_stride = out_width,
                                   .scale = scale, .dtype = DType::bf16};
    measure("attention_forward", shape, flops, static_cast<double>(attention_forward_cost(forward).bytes), [&] { attention_forward(context_, forward); });
    AttentionBackward backward{.dout = dout, .q = forward.q, .k = forward.k, .v = forward.v, .out = out, .lse = lse, .dq = dqkv, .dk = dqkv + out_width,
                               .dv = dqkv + out_width + kv_heads * head, .batch = batch, .tokens = tokens, .heads = heads, .kv_heads = kv_heads, .head_dim = head,
                               .q_stride = width, .kv_stride = width, .out_stride = out_width, .dq_stride = width, .dkv_stride = width, .scale = scale, .dtype = DType::bf16};
    backward.workspace = values<float>(attention_backward_workspace_elems(backward));
    measure("attention_backward", shape, 2.5 * flops, static_cast<double>(attention_backward_cost(backward).bytes), [&] { attention_backward(context_, backward); });
    free_all();
  }

  void norms() {
    for (int64_t width : {kWidth, int64_t{2048}}) {
      const int64_t rows = kBatch * kTokens;
      const std::string shape = fmt::format("{} x {}", rows, width);
      auto *x = values(rows * width), *delta = values(rows * width), *sum = values(rows * width), *y = values(rows * width), *weight = values(width), *bias = values(width);
      auto *mean = values<float>(rows), *inv = values<float>(rows), *dweight = values<float>(width), *dbias = values<float>(width);
      auto* workspace = values<float>(std::max(layer_norm_backward_workspace_elems(rows, width), int64_t{1}));
      if (width == kWidth) {
        const LayerNormForward forward{.x = x, .delta = delta, .sum = sum, .weight = weight, .bias = bias, .y = y, .mean = mean, .inv_std = inv, .rows = rows, .width = width, .dtype = DType::bf16};
        measure("layer_norm_forward", shape, layer_norm_forward_cost(forward), [&] { layer_norm_forward(context_, forward); });
        const LayerNormBackward backward{.dy = y, .x = sum, .weight = weight, .mean = mean, .inv_std = inv, .residual = delta, .dx = x, .dweight = dweight, .dbias = dbias,
                                         .workspace = workspace, .rows = rows, .width = width, .dtype = DType::bf16};
        measure("layer_norm_backward", shape, layer_norm_backward_cost(backward), [&] { layer_norm_backward(context_, backward); });
      } else {
        const RmsNormForward forward{.x = x, .delta = delta, .sum = sum, .weight = weight, .y = y, .inv_rms = inv, .rows = rows, .width = width, .dtype = DType::bf16};
        measure("rms_norm_forward", shape, rms_norm_forward_cost(forward), [&] { rms_norm_forward(context_, forward); });
        const RmsNormBackward backward{.dy = y, .x = sum, .weight = weight, .inv_rms = inv, .residual = delta, .dx = x, .dweight = dweight, .workspace = workspace, .rows = rows,
                                       .width = width, .dtype = DType::bf16};
        measure("rms_norm_backward", shape, rms_norm_backward_cost(backward), [&] { rms_norm_backward(context_, backward); });
      }
      free_all();
    }
  }

  void elementwise() {
    const int64_t rows = kBatch * kTokens, elems = rows * kHidden;
    const std::string shape = fmt::format("{} x {}", rows, kHidden);
    auto *x = values(2 * elems), *y = values(elems), *d = values(2 * elems);
    const GeluForward gelu_f{.x = x, .y = y, .elems = elems, .dtype = DType::bf16};
    measure("gelu_forward", shape, gelu_forward_cost(gelu_f), [&] { gelu_forward(context_, gelu_f); });
    const GeluBackward gelu_b{.dy = y, .x = x, .dx = d, .elems = elems, .dtype = DType::bf16};
    measure("gelu_backward", shape, gelu_backward_cost(gelu_b), [&] { gelu_backward(context_, gelu_b); });
    const SwigluForward swiglu_f{.gate_up = x, .y = y, .rows = rows, .width = kHidden, .dtype = DType::bf16};
    measure("swiglu_forward", shape, swiglu_forward_cost(swiglu_f), [&] { swiglu_forward(context_, swiglu_f); });
    const SwigluBackward swiglu_b{.dy = y, .gate_up = x, .dgate_up = d, .rows = rows, .width = kHidden, .dtype = DType::bf16};
    measure("swiglu_backward", shape, swiglu_backward_cost(swiglu_b), [&] { swiglu_backward(context_, swiglu_b); });
    const Residual residual_args{.a = x, .b = y, .y = d, .elems = elems, .dtype = DType::bf16};
    measure("residual", shape, residual_cost(residual_args), [&] { residual(context_, residual_args); });
    std::vector<float> table(static_cast<size_t>(kTokens * 64));
    rope_table(table.data(), kTokens, 64, 10000.0f);
    auto* on_card = static_cast<float*>(take(4 * kTokens * 64));
    SLIP_CUDA(cudaMemcpy(on_card, table.data(), 4 * table.size(), cudaMemcpyHostToDevice));
    const Rope rope_args{.x = x, .batch = kBatch, .tokens = kTokens, .heads = 32, .head_dim = 64, .row_stride = 32 * 64, .dtype = DType::bf16, .table = on_card};
    measure("rope", fmt::format("{} x 32 x 64", rows), rope_cost(rope_args), [&] { rope(context_, rope_args); });
    free_all();
  }

  void embedding_and_loss() {
    const int64_t rows = kBatch * kTokens;
    auto* tokens = ids(rows, 50257);
    auto* y = values(rows * kWidth);
    const std::string shape = fmt::format("{} x {} of {}", rows, kWidth, kVocab);
    const EmbeddingForward forward{.ids = tokens, .table = values(kVocab * kWidth), .positions = values(kTokens * kWidth), .y = y, .batch = kBatch, .tokens = kTokens, .width = kWidth,
                                   .dtype = DType::bf16, .vocab = kVocab};
    measure("embedding_forward", shape, embedding_forward_cost(forward), [&] { embedding_forward(context_, forward); });
    const EmbeddingBackward backward{.ids = tokens, .dy = y, .dtable = values<float>(kVocab * kWidth), .rows = rows, .width = kWidth, .vocab = kVocab, .dtype = DType::bf16, .accumulate = true};
    measure("embedding_backward", shape, embedding_backward_cost(backward), [&] { embedding_backward(context_, backward); });
    const PositionBackward position{.dy = y, .dpositions = values<float>(kTokens * kWidth), .batch = kBatch, .tokens = kTokens, .width = kWidth, .positions = kTokens, .dtype = DType::bf16};
    measure("position_backward", shape, position_backward_cost(position), [&] { position_backward(context_, position); });
    free_all();
    const int64_t some = rows / 4;
    const CrossEntropy loss{.logits = values(some * kVocab), .targets = ids(some, 50257), .loss_sum = static_cast<double*>(take(8)), .row_losses = values<float>(some), .rows = some,
                            .vocab = 50257, .stride = kVocab, .gradient_scale = 1.0f / static_cast<float>(rows), .dtype = DType::bf16, .backward = true};
    measure("cross_entropy", fmt::format("{} x {}", some, kVocab), cross_entropy_cost(loss), [&] { cross_entropy(context_, loss); });
    free_all();
  }

  void update() {
    const int64_t elems = 124'475'904;  // GPT-2's, with a table of kVocab rows
    const std::string shape = fmt::format("{}", elems);
    auto *p = values<float>(elems), *m = values<float>(elems, 1e-3f), *g = values<float>(elems);
    auto* v = static_cast<float*>(take(4 * elems));
    SLIP_CUDA(cudaMemset(v, 0x3c, static_cast<size_t>(4 * elems)));  // 0.0115, positive
    auto* narrow = values(elems);
    const AdamwScalars scalars{.learning_rate = 1e-5f, .inv_bias1 = 1, .inv_bias2 = 1, .clip = 1};
    auto* on_card = static_cast<AdamwScalars*>(take(sizeof scalars));
    SLIP_CUDA(cudaMemcpy(on_card, &scalars, sizeof scalars, cudaMemcpyHostToDevice));
    const Adamw args{.parameters = p, .m = m, .v = v, .gradient = g, .working = narrow, .elems = elems, .scalars = on_card, .weight_decay = 0.1f};
    measure("adamw", shape, adamw_cost(args), [&] { adamw(context_, args); });
    const SumSquares squares{.x = g, .elems = elems, .result = static_cast<double*>(take(8))};
    measure("sum_squares", shape, sum_squares_cost(squares), [&] { sum_squares(context_, squares); });
    const Cast down{.from = g, .to = narrow, .elems = elems, .from_dtype = DType::f32, .to_dtype = DType::bf16};
    measure("cast to bfloat16", shape, cast_cost(down), [&] { cast(context_, down); });
    const Add sums{.x = m, .y = g, .elems = elems};
    measure("add", shape, add_cost(sums), [&] { add(context_, sums); });
    free_all();
  }

  std::FILE* csv_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  LaunchContext context_;
  std::vector<void*> taken_;
  double copy_gbytes_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  test::require_card();
  try {
    CardBench(argc > 1 ? argv[1] : nullptr).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
