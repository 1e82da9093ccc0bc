// SPDX-License-Identifier: Apache-2.0
// Arguments and costs of the ops.

#include "trainer/bench/op_cases.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/core.h>

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

namespace slipstream::bench {

using namespace kernels;

template <typename Args, typename CostOf, typename Op>
void OpCases::time(const char* op, const std::string& shape, const Args& args, CostOf cost, Op run, double flops,
                   const Product& direct) {
  measure({op, shape, cost(args), [&] { run(context_, args); }, flops, direct});
}

bool OpCases::any_wanted(std::initializer_list<const char*> ops) {
  bool any = false;
  for (const char* op : ops) any = wanted(op) || any;
  return any;
}

template <typename T>
const T* OpCases::uploaded(const T* host, int64_t count) {
  const int64_t size_bytes = count * static_cast<int64_t>(sizeof(T));
  void* at = take(size_bytes);
  upload(at, host, size_bytes);
  return static_cast<const T*>(at);
}

void OpCases::products(const Layer& l) {
  if (!any_wanted({"matmul_forward", "matmul_backward_input", "matmul_backward_weight"})) return;
  const int64_t rows = l.rows, in = l.in, out = l.out;
  void *x = values(rows * in), *w = values(out * in, dtype_, 0.02f), *y = values(rows * out), *dx = values(rows * in);
  const std::string shape = fmt::format("{}{}{} x {} x {}", l.name, *l.name == '\0' ? "" : " ", rows, in, out);
  Product forward_direct, input_direct, weight_direct;
  if (const std::optional<DType> type = direct_type()) {
    const auto operand = [&](void* same, int64_t elems) { return type == dtype_ ? same : values(elems, *type, 1); };
    const void *ax = operand(x, rows * in), *aw = operand(w, out * in), *ay = operand(y, rows * out);
    float* c = floats(std::max(rows, in) * std::max(in, out));
    forward_direct = {.a = ax, .a_stride = in, .b = aw, .b_stride = in, .b_transposed = true, .c = c, .c_stride = out};
    forward_direct.m = rows, forward_direct.n = out, forward_direct.k = in, forward_direct.c_dtype = *type;
    input_direct = {.a = ay, .a_stride = out, .b = aw, .b_stride = in, .c = c, .c_stride = in};
    input_direct.m = rows, input_direct.n = in, input_direct.k = out, input_direct.c_dtype = *type;
    weight_direct = {.a = ay, .a_stride = out, .a_transposed = true, .b = ax, .b_stride = in, .c = c, .c_stride = in};
    weight_direct.m = out, weight_direct.n = in, weight_direct.k = rows;
  }
  const MatmulForward forward{.x = x,
                              .weight = w,
                              .bias = l.bias ? values(out) : nullptr,
                              .y = y,
                              .pre_activation = l.gelu ? take(bytes_of(rows * out, dtype_)) : nullptr,
                              .rows = rows,
                              .in = in,
                              .out = out,
                              .dtype = dtype_};
  time("matmul_forward", shape, forward, matmul_forward_cost, matmul_forward, 0, forward_direct);
  if (l.forward_alone) return free_all();
  const MatmulBackwardInput input{.dy = y, .weight = w, .dx = dx, .rows = rows, .in = in, .out = out, .dtype = dtype_};
  time("matmul_backward_input", shape, input, matmul_backward_input_cost, matmul_backward_input, 0, input_direct);
  const MatmulBackwardWeight weight{.x = x,
                                    .dy = y,
                                    .dweight = floats(out * in),
                                    .dbias = l.bias ? floats(out) : nullptr,
                                    .rows = rows,
                                    .in = in,
                                    .out = out,
                                    .dtype = dtype_,
                                    .accumulate = l.accumulate};
  time("matmul_backward_weight", shape, weight, matmul_backward_weight_cost, matmul_backward_weight, 0, weight_direct);
  free_all();
}

void OpCases::attention(int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim, bool blocks) {
  if (!any_wanted({"attention_forward", "attention_backward", "attention_block_forward", "attention_block_backward"}))
    return;
  const int64_t rows = batch * tokens, width = (heads + 2 * kv_heads) * head_dim, out_width = heads * head_dim;
  const std::string shape = fmt::format("B{} T{} H{}/{} x {}", batch, tokens, heads, kv_heads, head_dim);
  // Papers count half of the pairs of a causal mask, and the backward pass as 2.5 forward passes.
  const double flops = 2.0 * static_cast<double>(batch * heads * tokens) * static_cast<double>(tokens * head_dim);
  const auto part = [&](void* packed, int64_t begin) {
    return static_cast<std::byte*>(packed) + bytes_of(begin, dtype_);
  };
  const int64_t k_begin = out_width, v_begin = out_width + kv_heads * head_dim;
  void *qkv = values(rows * width), *dqkv = values(rows * width), *out = values(rows * out_width);
  const AttentionForward forward{.q = qkv,
                                 .k = part(qkv, k_begin),
                                 .v = part(qkv, v_begin),
                                 .out = out,
                                 .lse = floats(rows * heads),
                                 .batch = batch,
                                 .tokens = tokens,
                                 .heads = heads,
                                 .kv_heads = kv_heads,
                                 .head_dim = head_dim,
                                 .q_stride = width,
                                 .kv_stride = width,
                                 .out_stride = out_width,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                                 .dtype = dtype_};
  attention_forward(context_, forward);  // the backward pass needs its sums
  time("attention_forward", shape, forward, attention_forward_cost, attention_forward, flops);
  AttentionBackward backward{.dout = values(rows * out_width),
                             .q = forward.q,
                             .k = forward.k,
                             .v = forward.v,
                             .out = out,
                             .lse = forward.lse,
                             .dq = dqkv,
                             .dk = part(dqkv, k_begin),
                             .dv = part(dqkv, v_begin),
                             .batch = batch,
                             .tokens = tokens,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .head_dim = head_dim,
                             .q_stride = width,
                             .kv_stride = width,
                             .out_stride = out_width,
                             .dq_stride = width,
                             .dkv_stride = width,
                             .scale = forward.scale,
                             .dtype = dtype_};
  backward.workspace = floats(attention_backward_workspace_elems(backward));
  time("attention_backward", shape, backward, attention_backward_cost, attention_backward, 2.5 * flops);
  if (blocks) {
    // In the middle of a ring: all queries see half of the keys, as many pairs as above, and all state is carried.
    const AttentionBlock block{0, tokens, 0, tokens / 2, false};
    const AttentionBlockForward block_forward{
        .all = forward,
        .block = block,
        .carried = {floats(rows * out_width), floats(rows * heads), floats(rows * heads)},
        .first = false,
        .last = false};
    time("attention_block_forward", shape, block_forward, attention_block_forward_cost, attention_block_forward, flops);
    const AttentionBlockBackward block_backward{.all = backward,
                                                .block = block,
                                                .dq_sum = floats(rows * out_width),
                                                .dkv = floats(rows * 2 * kv_heads * head_dim),
                                                .first = false,
                                                .last = false};
    time("attention_block_backward", shape, block_backward, attention_block_backward_cost, attention_block_backward,
         2.5 * flops);
  }
  free_all();
}

void OpCases::layer_norm(int64_t rows, int64_t width) {
  const std::string shape = fmt::format("{} x {}", rows, width);
  void *delta = values(rows * width), *sum = values(rows * width), *y = values(rows * width), *weight = values(width);
  float *mean = floats(rows), *inv = floats(rows);
  void* x = values(rows * width);
  const LayerNormForward forward{.x = x,
                                 .delta = delta,
                                 .sum = sum,
                                 .weight = weight,
                                 .bias = values(width),
                                 .y = y,
                                 .mean = mean,
                                 .inv_std = inv,
                                 .rows = rows,
                                 .width = width,
                                 .dtype = dtype_};
  time("layer_norm_forward", shape, forward, layer_norm_forward_cost, layer_norm_forward);
  const LayerNormBackward backward{.dy = y,
                                   .x = sum,
                                   .weight = weight,
                                   .mean = mean,
                                   .inv_std = inv,
                                   .residual = delta,
                                   .dx = x,
                                   .dweight = floats(width),
                                   .dbias = floats(width),
                                   .workspace = floats(layer_norm_backward_workspace_elems(rows, width)),
                                   .rows = rows,
                                   .width = width,
                                   .dtype = dtype_};
  time("layer_norm_backward", shape, backward, layer_norm_backward_cost, layer_norm_backward);
  free_all();
}

void OpCases::rms_norm(int64_t rows, int64_t width) {
  const std::string shape = fmt::format("{} x {}", rows, width);
  void *delta = values(rows * width), *sum = values(rows * width), *y = values(rows * width), *weight = values(width);
  void* x = values(rows * width);
  float* inv = floats(rows);
  const RmsNormForward forward{.x = x,
                               .delta = delta,
                               .sum = sum,
                               .weight = weight,
                               .y = y,
                               .inv_rms = inv,
                               .rows = rows,
                               .width = width,
                               .dtype = dtype_};
  time("rms_norm_forward", shape, forward, rms_norm_forward_cost, rms_norm_forward);
  const RmsNormBackward backward{.dy = y,
                                 .x = sum,
                                 .weight = weight,
                                 .inv_rms = inv,
                                 .residual = delta,
                                 .dx = x,
                                 .dweight = floats(width),
                                 .workspace = floats(rms_norm_backward_workspace_elems(rows, width)),
                                 .rows = rows,
                                 .width = width,
                                 .dtype = dtype_};
  time("rms_norm_backward", shape, backward, rms_norm_backward_cost, rms_norm_backward);
  free_all();
}

void OpCases::head_norm(int64_t rows, int64_t heads, int64_t head_dim) {
  const int64_t packed = 3 * heads * head_dim;
  const std::string shape = fmt::format("{} x {} x {}", rows, 2 * heads, head_dim);
  void *x = values(rows * packed), *y = values(rows * packed), *weight = values(head_dim);
  float* inv = floats(rows * 2 * heads);
  const HeadNormForward forward{.x = x,
                                .q_weight = weight,
                                .k_weight = weight,
                                .y = y,
                                .inv_rms = inv,
                                .rows = rows,
                                .heads = heads,
                                .kv_heads = heads,
                                .head_dim = head_dim,
                                .dtype = dtype_};
  time("head_norm_forward", shape, forward, head_norm_forward_cost, head_norm_forward);
  const HeadNormBackward backward{.d = y,
                                  .x = x,
                                  .q_weight = weight,
                                  .k_weight = weight,
                                  .inv_rms = inv,
                                  .dq_weight = floats(head_dim),
                                  .dk_weight = floats(head_dim),
                                  .workspace = floats(head_norm_backward_workspace_elems(rows, head_dim)),
                                  .rows = rows,
                                  .heads = heads,
                                  .kv_heads = heads,
                                  .head_dim = head_dim,
                                  .dtype = dtype_};
  time("head_norm_backward", shape, backward, head_norm_backward_cost, head_norm_backward);
  free_all();
}

void OpCases::activations(int64_t rows, int64_t width) {
  const int64_t elems = rows * width;
  const std::string shape = fmt::format("{} x {}", rows, width);
  void *x = values(2 * elems), *y = values(elems), *d = values(2 * elems);
  const GeluForward gf{.x = x, .y = y, .elems = elems, .dtype = dtype_};
  time("gelu_forward", shape, gf, gelu_forward_cost, gelu_forward);
  const GeluBackward gb{.dy = y, .x = x, .dx = d, .elems = elems, .dtype = dtype_};
  time("gelu_backward", shape, gb, gelu_backward_cost, gelu_backward);
  const SwigluForward sf{.gate_up = x, .y = y, .rows = rows, .width = width, .dtype = dtype_};
  time("swiglu_forward", shape, sf, swiglu_forward_cost, swiglu_forward);
  const SwigluBackward sb{.dy = y, .gate_up = x, .dgate_up = d, .rows = rows, .width = width, .dtype = dtype_};
  time("swiglu_backward", shape, sb, swiglu_backward_cost, swiglu_backward);
  free_all();
}

void OpCases::residuals(int64_t batch, int64_t tokens, int64_t width) {
  const int64_t rows = batch * tokens, elems = rows * width;
  const std::string shape = fmt::format("{} x {}", rows, width);
  void *x = values(elems), *d = values(elems), *y = values(elems);
  const Residual sum{.a = x, .b = d, .y = y, .elems = elems, .dtype = dtype_};
  time("residual", shape, sum, residual_cost, residual);
  const std::vector<DropoutSample> samples(static_cast<size_t>(batch), {.step = 1, .sequence = 1});
  const DropoutSample* of_batch = uploaded(samples.data(), batch);
  for (bool adds : {true, false}) {
    const Dropout dropped{.x = adds ? x : nullptr,
                          .d = d,
                          .y = y,
                          .samples = of_batch,
                          .rows = rows,
                          .width = width,
                          .chunks = {.tokens = tokens},
                          .key = 1,
                          .rate = 0.1,
                          .dtype = dtype_};
    const auto cost = [adds](const Dropout& args) { return dropout_cost(args, adds); };
    time(adds ? "dropout_sum" : "dropout", shape, dropped, cost, dropout);
  }
  free_all();
}

void OpCases::rope(int64_t batch, int64_t tokens, int64_t heads, int64_t head_dim, int64_t row_stride) {
  std::vector<float> table(static_cast<size_t>(tokens * head_dim));
  rope_table(table.data(), tokens, head_dim, 10000.0f);
  const Rope turned{.x = values(batch * tokens * row_stride),
                    .batch = batch,
                    .tokens = tokens,
                    .heads = heads,
                    .head_dim = head_dim,
                    .row_stride = row_stride,
                    .dtype = dtype_,
                    .table = uploaded(table.data(), std::ssize(table))};
  time("rope", fmt::format("{} x {} x {}", batch * tokens, heads, head_dim), turned, rope_cost, kernels::rope);
  free_all();
}

void OpCases::embedding(int64_t batch, int64_t tokens, int64_t width, int64_t vocab, int64_t ids_below) {
  if (!any_wanted({"embedding_forward", "embedding_backward", "position_backward"})) return;
  const int64_t rows = batch * tokens;
  const std::string shape = fmt::format("{} x {} of {}", rows, width, vocab);
  const int32_t* chosen = ids(rows, ids_below);
  void* y = values(rows * width);
  const EmbeddingForward forward{.ids = chosen,
                                 .table = values(vocab * width),
                                 .positions = values(tokens * width),
                                 .y = y,
                                 .batch = batch,
                                 .tokens = tokens,
                                 .width = width,
                                 .dtype = dtype_,
                                 .vocab = vocab};
  time("embedding_forward", shape, forward, embedding_forward_cost, embedding_forward);
  const EmbeddingBackward backward{.ids = chosen,
                                   .dy = y,
                                   .dtable = floats(vocab * width),
                                   .rows = rows,
                                   .width = width,
                                   .vocab = vocab,
                                   .dtype = dtype_,
                                   .accumulate = true};
  time("embedding_backward", shape, backward, embedding_backward_cost, embedding_backward);
  const PositionBackward position{.dy = y,
                                  .dpositions = floats(tokens * width),
                                  .batch = batch,
                                  .tokens = tokens,
                                  .width = width,
                                  .positions = tokens,
                                  .dtype = dtype_};
  time("position_backward", shape, position, position_backward_cost, position_backward);
  free_all();
}

void OpCases::loss(int64_t rows, int64_t vocab, int64_t stride) {
  if (!any_wanted({"cross_entropy"})) return;
  const CrossEntropy loss{.logits = values(rows * stride),
                          .targets = ids(rows, vocab),
                          .loss_sum = static_cast<double*>(take(8)),
                          .row_losses = floats(rows),
                          .rows = rows,
                          .vocab = vocab,
                          .stride = stride,
                          .gradient_scale = 1.0f / static_cast<float>(rows),
                          .dtype = dtype_,
                          .backward = true};
  time("cross_entropy", fmt::format("{} x {}", rows, stride), loss, cross_entropy_cost, cross_entropy);
  free_all();
}

void OpCases::update(int64_t elems, bool narrow_alone) {
  const std::string shape = fmt::format("{}", elems);
  float *p = floats(elems), *m = floats(elems, 1e-3f), *g = floats(elems);
  float* v = floats(elems, 0);  // squares are not negative
  void* narrow = values(elems, DType::bf16, 1);
  const AdamwScalars scalars{.learning_rate = 1e-5f, .inv_bias1 = 1, .inv_bias2 = 1, .clip = 1};
  Adamw args{.parameters = p,
             .m = m,
             .v = v,
             .gradient = g,
             .elems = elems,
             .scalars = uploaded(&scalars, 1),
             .weight_decay = 0.1f};
  if (!narrow_alone) time("adamw", shape, args, adamw_cost, adamw);
  args.working = static_cast<bfloat16*>(narrow);
  time(narrow_alone ? "adamw" : "adamw to bfloat16", shape, args, adamw_cost, adamw);
  const SumSquaresPart whole{.begin = 0, .elems = elems, .result = 0};
  const SumSquares squares{.x = g, .parts = &whole, .part_count = 1, .results = static_cast<double*>(take(8))};
  time("sum_squares", shape, squares, sum_squares_cost, sum_squares);
  const Cast down{.from = g, .to = narrow, .elems = elems, .from_dtype = DType::f32, .to_dtype = DType::bf16};
  time("cast to bfloat16", shape, down, cast_cost, cast);
  const Cast up{.from = narrow, .to = g, .elems = elems, .from_dtype = DType::bf16, .to_dtype = DType::f32};
  time("cast to float32", shape, up, cast_cost, cast);
  const Add sums{.x = m, .y = g, .elems = elems};
  time("add", shape, sums, add_cost, add);
  free_all();
}

}  // namespace slipstream::bench
