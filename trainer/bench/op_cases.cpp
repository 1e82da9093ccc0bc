// SPDX-License-Identifier: Apache-2.0
// Arguments and costs of the ops.

#include "trainer/bench/op_cases.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/core.h>

#include "engine/base/philox.h"
#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/cast/cast.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"
#include "kernels/experts/grouped.h"
#include "kernels/experts/route.h"
#include "kernels/experts/router_linear.h"
#include "kernels/experts/rows.h"
#include "kernels/experts/weighted_swiglu.h"
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

OpCases::DirectProducts OpCases::direct_products(int64_t rows, int64_t in, int64_t out, void* x, void* w, void* y) {
  const std::optional<DType> type = direct_type();
  if (!type) return {};
  const auto operand = [&](void* same, int64_t elems) { return type == dtype_ ? same : values(elems, *type, 1); };
  const void *ax = operand(x, rows * in), *aw = operand(w, out * in), *ay = operand(y, rows * out);
  float* c = floats(std::max(rows, in) * std::max(in, out));
  DirectProducts d;
  d.forward = {.a = ax, .a_stride = in, .b = aw, .b_stride = in, .b_transposed = true, .c = c, .c_stride = out};
  d.forward.m = rows, d.forward.n = out, d.forward.k = in, d.forward.c_dtype = *type;
  d.input = {.a = ay, .a_stride = out, .b = aw, .b_stride = in, .c = c, .c_stride = in};
  d.input.m = rows, d.input.n = in, d.input.k = out, d.input.c_dtype = *type;
  d.weight = {.a = ay, .a_stride = out, .a_transposed = true, .b = ax, .b_stride = in, .c = c, .c_stride = in};
  d.weight.m = out, d.weight.n = in, d.weight.k = rows;
  return d;
}

void OpCases::products(const Layer& l) {
  if (!any_wanted({"matmul_forward", "matmul_backward_input", "matmul_backward_weight"})) return;
  const int64_t rows = l.rows, in = l.in, out = l.out;
  void *x = values(rows * in), *w = values(out * in, dtype_, 0.02f), *y = values(rows * out), *dx = values(rows * in);
  const std::string shape = fmt::format("{}{}{} x {} x {}", l.name, *l.name == '\0' ? "" : " ", rows, in, out);
  const auto [forward_direct, input_direct, weight_direct] = direct_products(rows, in, out, x, w, y);
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

namespace {
/// Draws `top_k` different experts for every token.
std::vector<int32_t> drawn_experts(int64_t tokens, int64_t count, int64_t top_k) {
  std::vector<int32_t> chosen;
  const Philox random(3, "experts");
  uint64_t draws = 0;
  for (int64_t t = 0; t < tokens; ++t)
    for (const auto first = std::ssize(chosen); std::ssize(chosen) < first + top_k;) {
      const auto expert = static_cast<int32_t>(random.zipf(draws++, static_cast<uint64_t>(count)));
      if (std::find(chosen.begin() + first, chosen.end(), expert) == chosen.end()) chosen.push_back(expert);
    }
  return chosen;
}
}  // namespace

void OpCases::experts(int64_t tokens, int64_t width, int64_t hidden, int64_t count, int64_t top_k) {
  if (!any_wanted({"router_linear", "router_linear_backward_input", "router_linear_backward_weight", "route_forward",
                   "route_backward", "arrange_rows", "take_rows", "return_rows", "grouped_forward",
                   "grouped_backward_input", "grouped_backward_weight", "weighted_swiglu_forward",
                   "weighted_swiglu_backward"}))
    return;
  const std::vector<int32_t> drawn = drawn_experts(tokens, count, top_k);
  router(tokens, width, count, top_k, uploaded(drawn.data(), std::ssize(drawn)));
  free_all();
  rows_of_experts(tokens, width, hidden, count, top_k, uploaded(drawn.data(), std::ssize(drawn)));
  free_all();
}

void OpCases::router(int64_t tokens, int64_t width, int64_t count, int64_t top_k, const int32_t* chosen) {
  const std::string shape = fmt::format("{} x {} of {}", tokens, width, count);
  void *x = values(tokens * width), *dx = values(tokens * width), *weight = values(count * width, dtype_, 0.02f);
  float *logits = floats(tokens * count), *scores = floats(tokens * count), *dlogits = floats(tokens * count);
  const RouterLinear linear{x, weight, logits, tokens, width, count, dtype_};
  time("router_linear", shape, linear, router_linear_cost, router_linear);
  RouteForward forward{.logits = logits, .scores = scores, .weights = floats(tokens * top_k)};
  forward.chosen = static_cast<int32_t*>(take(4 * tokens * top_k));
  forward.tokens = tokens, forward.experts = count, forward.top_k = top_k;
  const std::string choices = fmt::format("{} x {} of {}", tokens, top_k, count);
  time("route_forward", choices, forward, route_forward_cost, route_forward);
  const RouteBackward backward{.scores = scores,
                               .chosen = chosen,
                               .dweights = floats(tokens * top_k),
                               .dlogits = dlogits,
                               .tokens = tokens,
                               .sequence = tokens,
                               .experts = count,
                               .top_k = top_k};
  time("route_backward", choices, backward, route_backward_cost, route_backward);
  const RouterLinearBackwardInput input{dlogits, weight, dx, tokens, width, count, dtype_, true};
  time("router_linear_backward_input", shape, input, router_linear_backward_input_cost, router_linear_backward_input);
  const RouterLinearBackwardWeight of_weight{dlogits, x, floats(count * width), tokens, width, count, dtype_, true};
  time("router_linear_backward_weight", shape, of_weight, router_linear_backward_weight_cost,
       router_linear_backward_weight);
}

void OpCases::rows_of_experts(int64_t tokens, int64_t width, int64_t hidden, int64_t count, int64_t top_k,
                              const int32_t* chosen) {
  const int64_t rows = tokens * top_k;
  const auto whole_numbers = [&](int64_t elems) { return static_cast<int32_t*>(take(4 * elems)); };
  const ArrangeRows arranged{.chosen = chosen,
                             .offsets = whole_numbers(count + 1),
                             .rows = whole_numbers(rows),
                             .places = whole_numbers(rows),
                             .tokens = tokens,
                             .experts = count,
                             .top_k = top_k};
  arrange_rows(context_, arranged);  // the other ops need the order
  time("arrange_rows", fmt::format("{} x {} of {}", tokens, top_k, count), arranged, arrange_rows_cost, arrange_rows);
  const std::string shape = fmt::format("{} x {}", rows, width);
  void *x = values(tokens * width), *by_expert = values(rows * width);
  const TakeRows taken{.from = x,
                       .rows = arranged.rows,
                       .count = arranged.offsets + count,
                       .to = by_expert,
                       .top_k = top_k,
                       .max_rows = rows,
                       .width = width,
                       .dtype = dtype_,
                       .weights = floats(rows),
                       .row_weights = floats(rows)};
  time("take_rows", shape, taken, take_rows_cost, take_rows);
  const ReturnRows returned{.from = by_expert,
                            .places = arranged.places,
                            .to = x,
                            .tokens = tokens,
                            .top_k = top_k,
                            .width = width,
                            .dtype = dtype_};
  time("return_rows", shape, returned, return_rows_cost, return_rows);
  const std::string activations = fmt::format("{} x {}", rows, hidden);
  void *gate_up = values(2 * rows * hidden), *y = values(rows * hidden), *d = values(2 * rows * hidden);
  const WeightedSwigluForward swiglu{gate_up, taken.row_weights, y, taken.count, rows, hidden, dtype_};
  time("weighted_swiglu_forward", activations, swiglu, weighted_swiglu_forward_cost, weighted_swiglu_forward);
  const WeightedSwigluBackward gradient{y,      gate_up, taken.row_weights, d, floats(rows), taken.count, rows,
                                        hidden, dtype_};
  time("weighted_swiglu_backward", activations, gradient, weighted_swiglu_backward_cost, weighted_swiglu_backward);
  grouped_products(rows, width, 2 * hidden, count, arranged.offsets);
}

/// Their bound is one product of the same size.
void OpCases::grouped_products(int64_t rows, int64_t in, int64_t out, int64_t count, const int32_t* offsets) {
  const std::string shape = fmt::format("{}: {} x {} x {}", count, rows, in, out);
  void *x = values(rows * in), *y = values(rows * out), *dx = values(rows * in);
  void* weight = values(count * in * out, dtype_, 0.02f);
  const auto [forward_direct, input_direct, weight_direct] = direct_products(rows, in, out, x, weight, y);
  const GroupedForward forward{x, weight, y, offsets, rows, count, in, out, dtype_};
  time("grouped_forward", shape, forward, grouped_forward_cost, grouped_forward, 0, forward_direct);
  const GroupedBackwardInput input{y, weight, dx, offsets, rows, count, in, out, dtype_};
  time("grouped_backward_input", shape, input, grouped_backward_input_cost, grouped_backward_input, 0, input_direct);
  const GroupedBackwardWeight of_weight{x, y, floats(count * in * out), offsets, rows, count, in, out, dtype_, true};
  time("grouped_backward_weight", shape, of_weight, grouped_backward_weight_cost, grouped_backward_weight, 0,
       weight_direct);
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
