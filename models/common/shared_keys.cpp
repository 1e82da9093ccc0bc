// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism over more ranks than key-value heads. Every rank has the whole weights of keys and values, as it
// has those of norms, and multiplies with the rows of one head. Each of the ranks that use a head has a share of its
// gradient. The sum goes over all ranks, with zeros for the heads that a rank does not use.

#include <algorithm>

#include "kernels/matmul/matmul.h"
#include "kernels/step_scalars/step_scalars.h"
#include "models/common/blocks.h"

namespace slipstream::models {
namespace {

/// Returns the rows of one head's keys (0) or values (1) among those of all heads, with `row_bytes` per row.
Slice rows_of_head(const Slice& all, int which, int64_t head, int64_t heads, int64_t head_dim, int64_t row_bytes) {
  return {all.buffer, all.begin_bytes + (which * heads + head) * head_dim * row_bytes, head_dim * row_bytes};
}

}  // namespace

Linear SpecBuilder::joined_qkv(const Linear& q, const Linear& kv) {
  joins_.emplace_back(q, kv);
  Linear joined = q;
  joined.out = qkv_width();
  joined.made = scratch("qkv.weight", bytes_of(qkv_width() * q.in, options_.dtype));
  if (kv.bias >= 0) joined.made_bias = scratch("qkv.bias", bytes_of(qkv_width(), options_.dtype));
  return joined;
}

void SpecBuilder::assemble_qkv(const Linear& q, const Linear& kv, const Linear& joined) {
  const int64_t head = options_.tensor_index * options_.kv_heads / options_.tensor;
  std::vector<std::pair<Slice, Slice>> copies;  // pairs of source and destination
  const auto add = [&](Slice of_q, Slice of_kv, Slice to, int64_t row_bytes) {
    int64_t at = to.begin_bytes;
    for (const Slice& from : {of_q, rows_of_head(of_kv, 0, head, options_.kv_heads, head_dim(), row_bytes),
                              rows_of_head(of_kv, 1, head, options_.kv_heads, head_dim(), row_bytes)}) {
      copies.emplace_back(from, Slice{to.buffer, at, from.size_bytes});
      at += from.size_bytes;
    }
  };
  add(value(q.weight), value(kv.weight), joined.made, bytes_of(q.in, options_.dtype));
  if (kv.bias >= 0) add(bias_of(q), bias_of(kv), joined.made_bias, bytes_of(1, options_.dtype));
  std::vector<Slice> reads, writes;
  int64_t size_bytes = 0;
  for (const auto& [from, to] : copies) {
    reads.push_back(from), writes.push_back(to);
    size_bytes += from.size_bytes;
  }
  work("assemble_qkv", {0, 2 * size_bytes}, reads, writes,
       {.rule = Rule::own_part, .results = static_cast<uint8_t>(writes.size())}, [=](LaunchContext& c) {
         for (const auto& [from, to] : copies)
           kernels::copy(c, {.from = c.at(from), .to = c.at(to), .size_bytes = to.size_bytes});
       });
}

Slice SpecBuilder::kv_partial(const Linear& kv) {
  const int64_t elems = kv.out * (kv.in + (kv.bias >= 0 ? 1 : 0));
  // This is scratch even where weight gradients are delayed, because the share is computed, summed and added together
  // with them.
  return scratch("kv.partial", bytes_of(elems, DType::f32));
}

void SpecBuilder::qkv_weight_gradient(Slice x, Slice dy, const Linear& q, const Linear& kv, Slice partial) {
  const int64_t head = options_.tensor_index * options_.kv_heads / options_.tensor, E = head_dim(),
                elem_bytes = size_of(options_.dtype);
  const bool biases = kv.bias >= 0;
  const Slice weights{partial.buffer, partial.begin_bytes, kv.out * kv.in * 4},
      bias{partial.buffer, weights.end_bytes(), biases ? kv.out * 4 : 0};
  const Slice dw = gradient(q.weight), db = biases ? gradient(static_cast<uint32_t>(q.bias)) : Slice{};
  const kernels::MatmulBackwardWeight of_q{
      .rows = rows(), .in = q.in, .out = q.out, .dtype = options_.dtype, .dy_stride = qkv_width()};
  const Meaning meaning{.rule = Rule::weight_gradient,
                        .results = 0,
                        .sums = static_cast<uint8_t>(biases ? 2 : 1),
                        .adds = Adds::as_planned};
  work("matmul_weight_gradient", kernels::matmul_backward_weight_cost(of_q), with({x, dy, dw}, db), with({dw}, db),
       meaning, [=](LaunchContext& c) {
         kernels::MatmulBackwardWeight args = of_q;
         args.x = c.at(x);
         args.dy = c.at(dy);
         args.dweight = c.as<float>(dw);
         args.dbias = db.size_bytes > 0 ? c.as<float>(db) : nullptr;
         args.accumulate = adds(meaning, c);
         kernels::matmul_backward_weight(c, args);
       });
  ready(q.weight);
  if (biases) ready(static_cast<uint32_t>(q.bias));
  const kernels::MatmulBackwardWeight of_head{
      .rows = rows(), .in = kv.in, .out = E, .dtype = options_.dtype, .dy_stride = qkv_width()};
  Cost cost = kernels::matmul_backward_weight_cost(of_head);
  cost += kernels::matmul_backward_weight_cost(of_head);
  work("matmul_key_value_gradient", cost, {x, dy}, {partial},
       {.rule = Rule::weight_gradient, .results = 0, .sums = 1, .over_heads = true},
       [=, this_width = attention_width(), kv_heads = options_.kv_heads](LaunchContext& c) {
         kernels::zero(c, {.to = c.at(partial), .size_bytes = partial.size_bytes});
         for (const int which : {0, 1}) {
           kernels::MatmulBackwardWeight args = of_head;
           args.x = c.at(x);
           args.dy = c.at(dy) + (this_width + which * E) * elem_bytes;
           args.dweight = c.as<float>(rows_of_head(weights, which, head, kv_heads, E, of_head.in * 4));
           args.dbias = biases ? c.as<float>(rows_of_head(bias, which, head, kv_heads, E, 4)) : nullptr;
           kernels::matmul_backward_weight(c, args);
         }
       });
  sum_partial(partial);
}

void SpecBuilder::add_kv_partial(const Linear& kv, Slice partial) {
  const int64_t weight_bytes = kv.out * kv.in * 4;
  add_partial({partial.buffer, partial.begin_bytes, weight_bytes}, {kv.weight});
  if (kv.bias >= 0)
    add_partial({partial.buffer, partial.begin_bytes + weight_bytes, kv.out * 4}, {static_cast<uint32_t>(kv.bias)});
}

}  // namespace slipstream::models
