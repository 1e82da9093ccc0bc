// SPDX-License-Identifier: Apache-2.0
// slipstream bench kernels: every op at the sizes of three models, beside what bounds it.
//
// A product is bounded by the library called directly at the same shape and threads. Every other op is bounded by the
// larger of two times: a copy that reads and writes as many bytes, and its operations at the rate of a large product.
// The bound takes turns with the op, so that a busy machine slows both. T tokens of a sequence, D width, F hidden, V
// vocabulary.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/contestant.h"
#include "cli/csv_file.h"
#include "engine/base/parallel.h"
#include "engine/device/clock.h"
#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/cast/cast.h"
#include "kernels/common/isa.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu/gelu.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/product.h"
#include "kernels/residual/residual.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sum_squares/sum_squares.h"
#include "kernels/swiglu/swiglu.h"

namespace slipstream::cli {
namespace {

using namespace kernels;

struct Size {
  const char* name;
  int64_t batch, tokens, heads, width, ffn, vocab;
  int64_t rows() const { return batch * tokens; }
};
// The models of the comparison with PyTorch.
constexpr Size kSizes[] = {
    {"small", 12, 64, 4, 128, 512, 65}, {"middle", 8, 256, 6, 384, 1536, 256}, {"gpt2", 4, 64, 12, 768, 3072, 50257}};

// A turn lasts about so long; OpenMP's idle threads poll a few milliseconds before they sleep, which a pause outlasts.
// Threads that wake may share a core until the kernel's next look at the cores, some milliseconds later: so long the
// body runs before it is timed.
constexpr int64_t kTurnNs = 4'000'000, kWarmNs = 10'000'000;
constexpr auto kPause = std::chrono::milliseconds(6);

using Body = std::function<void()>;

/// Median times of one call, the bodies taking turns.
std::vector<double> interleaved_ns(const std::vector<Body>& bodies, int rounds) {
  std::vector<std::vector<double>> seen(bodies.size());
  std::vector<int64_t> calls(bodies.size(), 1);
  for (int round = -1; round < rounds; ++round)
    for (size_t b = 0; b < bodies.size(); ++b) {
      std::this_thread::sleep_for(kPause);
      int64_t begin = monotonic_ns();
      do bodies[b]();
      while (monotonic_ns() - begin < kWarmNs);
      begin = monotonic_ns();
      for (int64_t i = 0; i < calls[b]; ++i) bodies[b]();
      const double ns = static_cast<double>(monotonic_ns() - begin) / static_cast<double>(calls[b]);
      if (round < 0)
        calls[b] = std::clamp<int64_t>(static_cast<int64_t>(kTurnNs / std::max(1.0, ns)), 1, 10000);
      else
        seen[b].push_back(ns);
    }
  std::vector<double> medians;
  for (std::vector<double>& values : seen) medians.push_back(median(std::move(values)));
  return medians;
}

class KernelBench {
 public:
  explicit KernelBench(const BenchCommand& command) : command_(command) {}

  void run() {
    csv_.open(command_.csv, "op,dtype,size,shape,threads,time_us,gflops,gbytes_per_s,bound,bound_us,share_of_bound\n");
    for (int threads : command_.threads.empty() ? std::vector<int>{1} : command_.threads) {
      if (threads < 1) throw ConfigError("[bench] --threads {} must be at least 1.", threads);
      ThreadPool pool(threads);
      context_.pool = &pool;
      measure_rates(threads);
      for (const Size& size : kSizes)
        for (DType dtype : {DType::f32, DType::bf16}) {
          size_ = &size, dtype_ = dtype;
          products();
          activations();
          norms();
          attention();
          embedding_and_loss();
          if (dtype == DType::f32) update();
          memory_.clear();
        }
    }
    if (!found_)
      throw ConfigError(
          "[bench] no row of 'op dtype size' holds --only '{}'. Use a part of one, for instance matmul or 'float32 "
          "gpt2'.",
          command_.only);
  }

 private:
  bool wanted(const std::string& op) {
    const bool holds =
        fmt::format("{} {} {}", op, name_of(dtype_), size_->name).find(command_.only) != std::string::npos;
    found_ = found_ || holds;
    return holds;
  }

  /// Memory with small values of this size's dtype, or of float; lives until the size is done.
  void* values(int64_t elems, DType dtype) {
    memory_.emplace_back(static_cast<size_t>(bytes_of(elems, dtype)) / 64 + 1);
    void* at = memory_.back().data();
    for (int64_t i = 0; i < elems; ++i) {
      const float value = static_cast<float>(static_cast<uint32_t>(i) * 2654435761u >> 16 & 0xffff) / 65536.0f - 0.5f;
      if (dtype == DType::f32)
        static_cast<float*>(at)[i] = value;
      else
        static_cast<bfloat16*>(at)[i] = bfloat16(value);
    }
    return at;
  }
  void* values(int64_t elems) { return values(elems, dtype_); }
  float* floats(int64_t elems) { return static_cast<float*>(values(elems, DType::f32)); }
  const int32_t* ids(int64_t elems, int64_t vocab) {
    auto* at = reinterpret_cast<int32_t*>(floats(elems));
    for (int64_t i = 0; i < elems; ++i)
      at[i] = static_cast<int32_t>((static_cast<uint64_t>(i) * 2654435761u >> 8) % static_cast<uint64_t>(vocab));
    return at;
  }

  void copy_bytes(int64_t bytes) {
    const int64_t half = std::min<int64_t>(bytes / 2, static_cast<int64_t>(from_.size()));
    context_.pool->parallel_for(half, 64 << 10, [&](int64_t begin, int64_t end) {
      std::memcpy(to_.data() + begin, from_.data() + begin, static_cast<size_t>(end - begin));
    });
  }

  void measure_rates(int threads) {
    from_.assign(256 << 20, std::byte{1});
    to_.assign(from_.size(), std::byte{2});
    const int64_t n = 1024;
    size_ = &kSizes[0], dtype_ = DType::f32;
    const Product large{.a = floats(n * n),
                        .a_stride = n,
                        .b = floats(n * n),
                        .b_stride = n,
                        .c = floats(n * n),
                        .c_stride = n,
                        .m = n,
                        .n = n,
                        .k = n};
    const std::vector<double> ns = interleaved_ns({[&] { copy_bytes(int64_t{2} * static_cast<int64_t>(from_.size())); },
                                                   [&] {
                                                     if (!product_direct(large, DType::f32, threads))
                                                       product_f32(large);
                                                   }},
                                                  3);
    memory_.clear();
    flops_per_ns_ = 2.0 * static_cast<double>(n * n * n) / ns[1];
    fmt::print(
        "{}, {}, {} thread{}: copy through memory {:.1f} GB/s (read and written), product of 1024 x 1024 x 1024 {:.1f} "
        "GFLOP/s; medians of {} rounds in "
        "turn\n{:<26}{:<10}{:<8}{:<28}{:>12}{:>10}{:>9}{:>12}{:>9}  {}\n",
        product_library(), name_of(isa()), threads, threads == 1 ? "" : "s",
        2.0 * static_cast<double>(from_.size()) / ns[0], flops_per_ns_, command_.steps, "op", "dtype", "size", "shape",
        "us", "GFLOP/s", "GB/s", "bound us", "share", "bound by");
  }

  /// Ops that see memory are beside a copy of as many bytes. One that stays in cache is beside a copy that does too.
  void compare(const std::string& op, const std::string& shape, const Cost& cost, const Body& ours) {
    if (!wanted(op)) return;
    const std::vector<double> ns = interleaved_ns({ours, [&] { copy_bytes(cost.bytes); }}, command_.steps);
    const double arithmetic_ns = static_cast<double>(cost.flops) / flops_per_ns_;
    const double copied =
        std::min(1.0, 2.0 * static_cast<double>(from_.size()) / static_cast<double>(std::max<int64_t>(1, cost.bytes)));
    const double copy_ns = ns[1] / copied;
    print(op, shape, cost, ns[0], std::max(arithmetic_ns, copy_ns), copy_ns > arithmetic_ns ? "copy" : "operations");
  }

  void compare_product(const std::string& op, const std::string& shape, const Cost& cost, const Body& ours,
                       const Product& direct) {
    if (!wanted(op)) return;
    const int threads = context_.pool->threads();
    const DType dtype = product_has_bf16() ? dtype_ : DType::f32;
    if (!product_direct(direct, dtype, threads)) return compare(op, shape, cost, ours);
    const std::vector<double> ns =
        interleaved_ns({ours, [&] { product_direct(direct, dtype, threads); }}, command_.steps);
    print(op, shape, cost, ns[0], ns[1], dtype == dtype_ ? "library" : "library in float32");
  }

  void print(const std::string& op, const std::string& shape, const Cost& cost, double ns, double bound_ns,
             const char* bound) {
    const double gflops = static_cast<double>(cost.flops) / ns, gbytes = static_cast<double>(cost.bytes) / ns;
    fmt::print("{:<26}{:<10}{:<8}{:<28}{:>12.1f}{:>10.1f}{:>9.1f}{:>12.1f}{:>8.0f}%  {}\n", op, name_of(dtype_),
               size_->name, shape, ns / 1e3, gflops, gbytes, bound_ns / 1e3, 100 * bound_ns / ns, bound);
    std::fflush(stdout);
    csv_.row("{},{},{},{},{},{:.6g},{:.6g},{:.6g},{},{:.6g},{:.6g}\n", op, name_of(dtype_), size_->name, shape,
             context_.pool->threads(), ns / 1e3, gflops, gbytes, bound, bound_ns / 1e3, bound_ns / ns);
  }

  void products() {
    const Size& s = *size_;
    const struct {
      const char* name;
      int64_t in, out;
    } layers[] = {{"qkv", s.width, 3 * s.width},
                  {"projection", s.width, s.width},
                  {"up", s.width, s.ffn},
                  {"down", s.ffn, s.width},
                  {"head", s.width, s.vocab}};
    const int64_t rows = s.rows();
    for (const auto& layer : layers) {
      if (!wanted("matmul_forward") && !wanted("matmul_backward_input") && !wanted("matmul_backward_weight")) continue;
      const int64_t in = layer.in, out = layer.out;
      void *x = values(rows * in), *w = values(out * in), *y = values(rows * out), *dx = values(rows * in);
      float *fx = floats(rows * in), *fw = floats(out * in), *fy = floats(rows * out), *dw = floats(out * in),
            *c = floats(std::max(rows, in) * std::max(in, out));
      const bool narrow = product_has_bf16() && dtype_ == DType::bf16;
      const void *ax = narrow ? x : fx, *aw = narrow ? w : fw, *ay = narrow ? y : fy;
      const DType rounded = narrow ? DType::bf16 : DType::f32;
      const std::string shape = fmt::format("{} {} x {} x {}", layer.name, rows, in, out);
      const MatmulForward forward{.x = x, .weight = w, .y = y, .rows = rows, .in = in, .out = out, .dtype = dtype_};
      compare_product("matmul_forward", shape, matmul_forward_cost(forward), [&] { matmul_forward(context_, forward); },
                      {.a = ax,
                       .a_stride = in,
                       .b = aw,
                       .b_stride = in,
                       .b_transposed = true,
                       .c = c,
                       .c_stride = out,
                       .m = rows,
                       .n = out,
                       .k = in,
                       .c_dtype = rounded});
      const MatmulBackwardInput input{
          .dy = y, .weight = w, .dx = dx, .rows = rows, .in = in, .out = out, .dtype = dtype_};
      compare_product("matmul_backward_input", shape, matmul_backward_input_cost(input),
                      [&] { matmul_backward_input(context_, input); },
                      {.a = ay,
                       .a_stride = out,
                       .b = aw,
                       .b_stride = in,
                       .c = c,
                       .c_stride = in,
                       .m = rows,
                       .n = in,
                       .k = out,
                       .c_dtype = rounded});
      const MatmulBackwardWeight weight{
          .x = x, .dy = y, .dweight = dw, .rows = rows, .in = in, .out = out, .dtype = dtype_};
      compare_product("matmul_backward_weight", shape, matmul_backward_weight_cost(weight),
                      [&] { matmul_backward_weight(context_, weight); },
                      {.a = ay,
                       .a_stride = out,
                       .a_transposed = true,
                       .b = ax,
                       .b_stride = in,
                       .c = c,
                       .c_stride = in,
                       .m = out,
                       .n = in,
                       .k = rows});
      memory_.clear();
    }
  }

  void activations() {
    const Size& s = *size_;
    const int64_t elems = s.rows() * s.ffn;
    const std::string shape = fmt::format("{} x {}", s.rows(), s.ffn);
    void *x = values(2 * elems), *y = values(elems), *d = values(2 * elems);
    const GeluForward gf{.x = x, .y = y, .elems = elems, .dtype = dtype_};
    compare("gelu_forward", shape, gelu_forward_cost(gf), [&] { gelu_forward(context_, gf); });
    const GeluBackward gb{.dy = y, .x = x, .dx = d, .elems = elems, .dtype = dtype_};
    compare("gelu_backward", shape, gelu_backward_cost(gb), [&] { gelu_backward(context_, gb); });
    const SwigluForward sf{.gate_up = x, .y = y, .rows = s.rows(), .width = s.ffn, .dtype = dtype_};
    compare("swiglu_forward", shape, swiglu_forward_cost(sf), [&] { swiglu_forward(context_, sf); });
    const SwigluBackward sb{.dy = y, .gate_up = x, .dgate_up = d, .rows = s.rows(), .width = s.ffn, .dtype = dtype_};
    compare("swiglu_backward", shape, swiglu_backward_cost(sb), [&] { swiglu_backward(context_, sb); });
    const Residual residual_args{.a = x, .b = y, .y = d, .elems = s.rows() * s.width, .dtype = dtype_};
    compare("residual", fmt::format("{} x {}", s.rows(), s.width), residual_cost(residual_args),
            [&] { residual(context_, residual_args); });
    memory_.clear();
  }

  void norms() {
    const int64_t rows = size_->rows(), width = size_->width;
    const std::string shape = fmt::format("{} x {}", rows, width);
    void *x = values(rows * width), *delta = values(rows * width), *sum = values(rows * width),
         *y = values(rows * width), *weight = values(width), *bias = values(width);
    float *mean = floats(rows), *inv = floats(rows), *dweight = floats(width), *dbias = floats(width);
    float* workspace = floats(layer_norm_backward_workspace_elems(rows, width));
    const LayerNormForward lf{.x = x,
                              .delta = delta,
                              .sum = sum,
                              .weight = weight,
                              .bias = bias,
                              .y = y,
                              .mean = mean,
                              .inv_std = inv,
                              .rows = rows,
                              .width = width,
                              .dtype = dtype_};
    compare("layer_norm_forward", shape, layer_norm_forward_cost(lf), [&] { layer_norm_forward(context_, lf); });
    const LayerNormBackward lb{.dy = y,
                               .x = sum,
                               .weight = weight,
                               .mean = mean,
                               .inv_std = inv,
                               .residual = delta,
                               .dx = x,
                               .dweight = dweight,
                               .dbias = dbias,
                               .workspace = workspace,
                               .rows = rows,
                               .width = width,
                               .dtype = dtype_};
    compare("layer_norm_backward", shape, layer_norm_backward_cost(lb), [&] { layer_norm_backward(context_, lb); });
    const RmsNormForward rf{.x = x,
                            .delta = delta,
                            .sum = sum,
                            .weight = weight,
                            .y = y,
                            .inv_rms = inv,
                            .rows = rows,
                            .width = width,
                            .dtype = dtype_};
    compare("rms_norm_forward", shape, rms_norm_forward_cost(rf), [&] { rms_norm_forward(context_, rf); });
    const RmsNormBackward rb{.dy = y,
                             .x = sum,
                             .weight = weight,
                             .inv_rms = inv,
                             .residual = delta,
                             .dx = x,
                             .dweight = dweight,
                             .workspace = workspace,
                             .rows = rows,
                             .width = width,
                             .dtype = dtype_};
    compare("rms_norm_backward", shape, rms_norm_backward_cost(rb), [&] { rms_norm_backward(context_, rb); });
    memory_.clear();
  }

  void attention() {
    const Size& s = *size_;
    const int64_t rows = s.rows(), d = s.width, head = s.width / s.heads;
    const std::string shape = fmt::format("B{} T{} H{} x {}", s.batch, s.tokens, s.heads, head);
    auto* qkv = static_cast<std::byte*>(values(rows * 3 * d));
    auto* dqkv = static_cast<std::byte*>(values(rows * 3 * d));
    void *out = values(rows * d), *dout = values(rows * d);
    float* lse = floats(rows * s.heads);
    const int64_t part = bytes_of(d, dtype_);
    const float scale = 1.0f / std::sqrt(static_cast<float>(head));
    const AttentionForward forward{.q = qkv,
                                   .k = qkv + part,
                                   .v = qkv + 2 * part,
                                   .out = out,
                                   .lse = lse,
                                   .batch = s.batch,
                                   .tokens = s.tokens,
                                   .heads = s.heads,
                                   .kv_heads = s.heads,
                                   .head_dim = head,
                                   .q_stride = 3 * d,
                                   .kv_stride = 3 * d,
                                   .out_stride = d,
                                   .scale = scale,
                                   .dtype = dtype_};
    attention_forward(context_, forward);  // backward needs its sums
    compare("attention_forward", shape, attention_forward_cost(forward), [&] { attention_forward(context_, forward); });
    AttentionBackward backward{.dout = dout,
                               .q = qkv,
                               .k = qkv + part,
                               .v = qkv + 2 * part,
                               .out = out,
                               .lse = lse,
                               .dq = dqkv,
                               .dk = dqkv + part,
                               .dv = dqkv + 2 * part,
                               .batch = s.batch,
                               .tokens = s.tokens,
                               .heads = s.heads,
                               .kv_heads = s.heads,
                               .head_dim = head,
                               .q_stride = 3 * d,
                               .kv_stride = 3 * d,
                               .out_stride = d,
                               .dq_stride = 3 * d,
                               .dkv_stride = 3 * d,
                               .scale = scale,
                               .dtype = dtype_};
    backward.workspace = floats(attention_backward_workspace_elems(backward));
    compare("attention_backward", shape, attention_backward_cost(backward),
            [&] { attention_backward(context_, backward); });
    float* table = floats(s.tokens * head);
    rope_table(table, s.tokens, head, 10000.0f);
    const Rope rope_args{.x = qkv,
                         .batch = s.batch,
                         .tokens = s.tokens,
                         .heads = s.heads,
                         .head_dim = head,
                         .row_stride = 3 * d,
                         .dtype = dtype_,
                         .table = table};
    compare("rope", shape, rope_cost(rope_args), [&] { rope(context_, rope_args); });
    memory_.clear();
  }

  void embedding_and_loss() {
    const Size& s = *size_;
    const int64_t rows = s.rows();
    const int32_t* tokens = ids(rows, s.vocab);
    void *y = values(rows * s.width), *logits = values(rows * s.vocab);
    const std::string shape = fmt::format("{} x {} of {}", rows, s.width, s.vocab);
    if (wanted("embedding_forward") || wanted("embedding_backward") || wanted("position_backward")) {
      void *table = values(s.vocab * s.width), *positions = values(s.tokens * s.width);
      float *dtable = floats(s.vocab * s.width), *dpositions = floats(s.tokens * s.width);
      const EmbeddingForward forward{.ids = tokens,
                                     .table = table,
                                     .positions = positions,
                                     .y = y,
                                     .batch = s.batch,
                                     .tokens = s.tokens,
                                     .width = s.width,
                                     .dtype = dtype_,
                                     .vocab = s.vocab};
      compare("embedding_forward", shape, embedding_forward_cost(forward),
              [&] { embedding_forward(context_, forward); });
      const EmbeddingBackward backward{.ids = tokens,
                                       .dy = y,
                                       .dtable = dtable,
                                       .rows = rows,
                                       .width = s.width,
                                       .vocab = s.vocab,
                                       .dtype = dtype_,
                                       .accumulate = true};
      compare("embedding_backward", shape, embedding_backward_cost(backward),
              [&] { embedding_backward(context_, backward); });
      const PositionBackward position{.dy = y,
                                      .dpositions = dpositions,
                                      .batch = s.batch,
                                      .tokens = s.tokens,
                                      .width = s.width,
                                      .positions = s.tokens,
                                      .dtype = dtype_};
      compare("position_backward", shape, position_backward_cost(position),
              [&] { position_backward(context_, position); });
    }
    double sum = 0;
    const CrossEntropy loss{.logits = logits,
                            .targets = tokens,
                            .loss_sum = &sum,
                            .row_losses = floats(rows),
                            .rows = rows,
                            .vocab = s.vocab,
                            .stride = s.vocab,
                            .gradient_scale = 1.0f / static_cast<float>(rows),
                            .dtype = dtype_,
                            .backward = true};
    compare("cross_entropy", fmt::format("{} x {}", rows, s.vocab), cross_entropy_cost(loss),
            [&] { cross_entropy(context_, loss); });
    memory_.clear();
  }

  /// Over the parameters of one block; these see float whatever the activations are.
  void update() {
    const int64_t elems = 12 * size_->width * size_->width + 13 * size_->width;
    const std::string shape = fmt::format("{}", elems);
    float *p = floats(elems), *m = floats(elems), *v = floats(elems), *g = floats(elems);
    std::for_each(v, v + elems, [](float& value) { value = std::abs(value); });
    auto* narrow = static_cast<bfloat16*>(values(elems, DType::bf16));
    const AdamwScalars scalars{.learning_rate = 1e-5f, .inv_bias1 = 1, .inv_bias2 = 1, .clip = 1};
    Adamw args{
        .parameters = p, .m = m, .v = v, .gradient = g, .elems = elems, .scalars = &scalars, .weight_decay = 0.1f};
    compare("adamw", shape, adamw_cost(args), [&] { adamw(context_, args); });
    args.working = narrow;
    compare("adamw to bfloat16", shape, adamw_cost(args), [&] { adamw(context_, args); });
    double sum = 0;
    const SumSquaresPart whole{.begin = 0, .elems = elems, .result = 0};
    const SumSquares squares{.x = g, .parts = &whole, .part_count = 1, .results = &sum};
    compare("sum_squares", shape, sum_squares_cost(squares), [&] { sum_squares(context_, squares); });
    const Cast down{.from = g, .to = narrow, .elems = elems, .from_dtype = DType::f32, .to_dtype = DType::bf16};
    compare("cast to bfloat16", shape, cast_cost(down), [&] { cast(context_, down); });
    const Cast up{.from = narrow, .to = g, .elems = elems, .from_dtype = DType::bf16, .to_dtype = DType::f32};
    compare("cast to float32", shape, cast_cost(up), [&] { cast(context_, up); });
    const Add sums{.x = m, .y = g, .elems = elems};
    compare("add", shape, add_cost(sums), [&] { add(context_, sums); });
    memory_.clear();
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  const BenchCommand& command_;
  LaunchContext context_;
  const Size* size_ = nullptr;
  bool found_ = false;  // a row that --only holds
  DType dtype_ = DType::f32;
  std::vector<std::vector<Line>> memory_;
  std::vector<std::byte> from_, to_;
  double flops_per_ns_ = 0;
  CsvFile csv_;
};

}  // namespace

int bench_kernels(const BenchCommand& command) {
  if (command.steps < 1) throw ConfigError("[bench] --rounds {} must be at least 1.", command.steps);
  KernelBench(command).run();
  return 0;
}

}  // namespace slipstream::cli
