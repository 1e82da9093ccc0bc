// SPDX-License-Identifier: Apache-2.0
// Attention over whole sequences, forward and backward, and the dropout of its weights.

#include "kernels/attention/attention.h"

#include <cmath>

#include <fmt/core.h>

#include "models/common/blocks.h"
#include "models/common/ring.h"

namespace slipstream::models {

kernels::AttentionDropout SpecBuilder::attention_dropout(int layer, double rate) const {
  return {.key = kernels::dropout_key(options_.dropout.seed, fmt::format("dropout.layer{}.weights", layer)),
          .rate = rate,
          .first_head = options_.tensor_index * heads()};
}

kernels::AttentionDropout with_samples(LaunchContext& c, kernels::AttentionDropout dropout, const Slice& numbers) {
  if (numbers.size_bytes > 0) dropout.samples = c.as<kernels::DropoutSample>(numbers);
  return dropout;
}

kernels::AttentionForward SpecBuilder::attention_shape(const AttentionLayer& layer, int64_t kv_stride) const {
  return {.batch = options_.batch,
          .tokens = options_.tokens,
          .heads = heads(),
          .kv_heads = kv_heads(),
          .head_dim = head_dim(),
          .q_stride = qkv_width(),
          .kv_stride = kv_stride,
          .out_stride = attention_width(),
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim())),
          .dtype = options_.dtype,
          .window = window(layer)};
}

kernels::AttentionBackward SpecBuilder::attention_gradient_shape(const AttentionLayer& layer, int64_t kv_stride) const {
  const kernels::AttentionForward f = attention_shape(layer, kv_stride);
  return {.batch = f.batch,
          .tokens = f.tokens,
          .heads = f.heads,
          .kv_heads = f.kv_heads,
          .head_dim = f.head_dim,
          .q_stride = f.q_stride,
          .kv_stride = f.kv_stride,
          .out_stride = f.out_stride,
          .dq_stride = qkv_width(),
          .scale = f.scale,
          .dtype = f.dtype,
          .window = f.window};
}

Ring* SpecBuilder::ring() {
  if (options_.context_ranks > 1 && !ring_) ring_ = std::make_shared<Ring>(*this);
  return ring_.get();
}

void SpecBuilder::attention(const AttentionLayer& layer, double dropout_rate, Slice qkv, Slice out, Slice lse) {
  if (ring()) return ring_->forward(layer, dropout_rate, qkv, out, lse);
  const Slice numbers = sequence_numbers(dropout_rate);
  const kernels::AttentionDropout dropout = attention_dropout(layer.index, dropout_rate);
  const int64_t k_offset = heads() * head_dim();
  const int64_t v_offset = k_offset + kv_heads() * head_dim();
  const int64_t elem_bytes = size_of(options_.dtype);
  const kernels::AttentionForward shape = attention_shape(layer, qkv_width());
  work("attention", kernels::attention_forward_cost(shape), with(with({qkv}, document_begins_), numbers), {out, lse},
       {.rule = Rule::sequences, .results = 2}, [=, begins = document_begins_](LaunchContext& c) {
         kernels::AttentionForward args = shape;
         const kernels::AttentionDropout dropped = with_samples(c, dropout, numbers);
         if (numbers.size_bytes > 0) args.dropout = &dropped;
         if (begins.size_bytes > 0) args.document_begins = c.as<int32_t>(begins);
         args.q = c.at(qkv);
         args.k = c.at(qkv) + k_offset * elem_bytes;
         args.v = c.at(qkv) + v_offset * elem_bytes;
         args.out = c.at(out);
         args.lse = c.as<float>(lse);
         kernels::attention_forward(c, args);
       });
}

void SpecBuilder::fetch_keys(int layer, Slice qkv) {
  if (ring()) ring_->fetch(layer, qkv);
}

void SpecBuilder::attention_gradient(const AttentionLayer& layer, Slice dout, Slice qkv, Slice out, Slice lse,
                                     Slice dqkv) {
  if (ring()) return ring_->backward(layer, dout, qkv, out, lse, dqkv);
  const double dropout_rate = options_.dropout.attention;
  const Slice numbers = sequence_numbers(dropout_rate);
  const kernels::AttentionDropout dropout = attention_dropout(layer.index, dropout_rate);
  const int64_t k_offset = heads() * head_dim();
  const int64_t v_offset = k_offset + kv_heads() * head_dim();
  const int64_t elem_bytes = size_of(options_.dtype);
  const Slice workspace = attention_workspace_;
  kernels::AttentionBackward shape = attention_gradient_shape(layer, qkv_width());
  shape.dkv_stride = qkv_width();
  work("attention_gradient", kernels::attention_backward_cost(shape),
       with(with({dout, qkv, out, lse}, document_begins_), numbers), {dqkv, workspace}, {.rule = Rule::sequences},
       [=, begins = document_begins_](LaunchContext& c) {
         kernels::AttentionBackward args = shape;
         const kernels::AttentionDropout dropped = with_samples(c, dropout, numbers);
         if (numbers.size_bytes > 0) args.dropout = &dropped;
         if (begins.size_bytes > 0) args.document_begins = c.as<int32_t>(begins);
         args.dout = c.at(dout);
         args.q = c.at(qkv);
         args.k = c.at(qkv) + k_offset * elem_bytes;
         args.v = c.at(qkv) + v_offset * elem_bytes;
         args.out = c.at(out);
         args.lse = c.as<float>(lse);
         args.dq = c.at(dqkv);
         args.dk = c.at(dqkv) + k_offset * elem_bytes;
         args.dv = c.at(dqkv) + v_offset * elem_bytes;
         args.workspace = c.as<float>(workspace);
         kernels::attention_backward(c, args);
       });
}

}  // namespace slipstream::models
