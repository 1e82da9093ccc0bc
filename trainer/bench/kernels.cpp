// SPDX-License-Identifier: Apache-2.0
// Runs slipstream bench kernels: every op at the sizes of three models, with its bound (kernel_timer.h). T tokens of a
// sequence, D width, F hidden, V vocabulary.

#include "trainer/bench/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/base/parallel.h"
#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/cast/cast.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu/gelu.h"
#include "kernels/head_norm/head_norm.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/residual/residual.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sum_squares/sum_squares.h"
#include "kernels/swiglu/swiglu.h"
#include "trainer/bench/kernel_timer.h"

namespace slipstream::bench {
namespace {

using namespace kernels;

// The models of the comparison with PyTorch.
constexpr KernelTimer::Size kSizes[] = {
    {"small", 12, 64, 4, 128, 512, 65}, {"middle", 8, 256, 6, 384, 1536, 256}, {"gpt2", 4, 64, 12, 768, 3072, 50257}};

class KernelBench : KernelTimer {
 public:
  using KernelTimer::KernelTimer;

  void run() {
    for (int threads : options_.threads) {
      if (threads < 1) throw ConfigError("[bench] --threads {} must be at least 1.", threads);
      ThreadPool pool(threads);
      context_.pool = &pool;
      measure_rates(kSizes[0]);
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
          "[bench] no row of 'op dtype size' contains --only '{}'. Use part of a row, for instance matmul or 'float32 "
          "gpt2'.",
          options_.only);
  }

 private:
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
    const std::vector<DropoutSample> samples(static_cast<size_t>(s.batch), {.step = 1, .sequence = 1});
    for (bool adds : {true, false}) {
      const Dropout dropped{.x = adds ? x : nullptr,
                            .d = y,
                            .y = d,
                            .samples = samples.data(),
                            .rows = s.rows(),
                            .width = s.width,
                            .chunks = {.tokens = s.tokens},
                            .key = 1,
                            .rate = 0.1,
                            .dtype = dtype_};
      compare(adds ? "dropout_sum" : "dropout", fmt::format("{} x {}", s.rows(), s.width), dropout_cost(dropped, adds),
              [&] { dropout(context_, dropped); });
    }
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
    head_norms();
    memory_.clear();
  }

  void head_norms() {
    const int64_t rows = size_->rows(), heads = size_->heads, head = size_->width / heads, packed = 3 * size_->width;
    const std::string shape = fmt::format("{} x {} x {}", rows, 2 * heads, head);
    void *x = values(rows * packed), *y = values(rows * packed), *weight = values(head);
    float *inv = floats(rows * 2 * heads), *dq = floats(head), *dk = floats(head);
    const HeadNormForward f{.x = x,
                            .q_weight = weight,
                            .k_weight = weight,
                            .y = y,
                            .inv_rms = inv,
                            .rows = rows,
                            .heads = heads,
                            .kv_heads = heads,
                            .head_dim = head,
                            .dtype = dtype_};
    compare("head_norm_forward", shape, head_norm_forward_cost(f), [&] { head_norm_forward(context_, f); });
    const HeadNormBackward b{.d = y,
                             .x = x,
                             .q_weight = weight,
                             .k_weight = weight,
                             .inv_rms = inv,
                             .dq_weight = dq,
                             .dk_weight = dk,
                             .workspace = floats(head_norm_backward_workspace_elems(rows, head)),
                             .rows = rows,
                             .heads = heads,
                             .kv_heads = heads,
                             .head_dim = head,
                             .dtype = dtype_};
    compare("head_norm_backward", shape, head_norm_backward_cost(b), [&] { head_norm_backward(context_, b); });
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
    attention_forward(context_, forward);  // the backward pass needs its sums
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

  /// Times the ops over the parameters of one block. They use float for every activation type.
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
};

}  // namespace

int bench_kernels(const KernelsOptions& options) {
  if (options.rounds < 1) throw ConfigError("[bench] --rounds {} must be at least 1.", options.rounds);
  KernelBench(options).run();
  return 0;
}

}  // namespace slipstream::bench
