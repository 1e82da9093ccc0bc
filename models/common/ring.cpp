// SPDX-License-Identifier: Apache-2.0
// The pieces of ring attention, and the exchanges between them.

#include "models/common/ring.h"

#include <cmath>

#include <fmt/core.h>

#include "kernels/attention/attention.h"
#include "kernels/cast/cast.h"
#include "kernels/columns/columns.h"
#include "kernels/step_scalars/step_scalars.h"

namespace slipstream::models {
namespace {

ContextChunks of_rank(ContextChunks chunks, int rank) {
  chunks.rank = rank;
  return chunks;
}

/// Sets `shape` to this rank's queries and the keys that it has in a step.
template <typename Shape>
Shape in_step(Shape shape, const ContextChunks& chunks, int step) {
  shape.queries = chunks;
  shape.keys = of_rank(chunks, chunks.owner(step));
  return shape;
}

/// Returns the cost of a step's block on the rank with the most pairs, but with the mean number of operations over the
/// ranks. So plans are equal on all ranks of the group, and their operations sum to the model's. Without a window, all
/// ranks have the same number of pairs in a step.
template <typename Block>
Cost cost_of_step(Block block, int step, Cost (*cost_of)(const Block&)) {
  Cost most = {};
  int64_t flops = 0;
  for (int rank = 0; rank < block.all.queries.ranks; ++rank) {
    const ContextChunks chunks = of_rank(block.all.queries, rank);
    block.all.queries = chunks;
    block.all.keys = of_rank(chunks, chunks.owner(step));
    block.block = chunks.block(chunks.owner(step));
    const Cost cost = cost_of(block);
    flops += cost.flops;
    if (rank == 0 || cost.flops > most.flops) most = cost;
  }
  most.flops = most.kernels[0].flops = flops / block.all.queries.ranks;
  return most;
}

/// The location of a step's k and v: columns of this rank's own rows, or rows of keys that have travelled.
struct KeysAt {
  Slice rows;
  int64_t stride = 0;    // in elements
  int64_t k = 0, v = 0;  // columns
};
KeysAt keys_at(const SpecBuilder& b, int step, Slice qkv, Slice travelled) {
  const int64_t q_width = b.heads() * b.head_dim(), half = b.kv_heads() * b.head_dim();
  if (step == 0) return {qkv, b.qkv_width(), q_width, q_width + half};
  return {travelled, 2 * half, 0, half};
}

}  // namespace

Ring::Ring(SpecBuilder& builder) : b_(builder), chunks_(builder.options().chunks()) {
  const ModelOptions& o = b_.options();
  const int64_t elems = b_.rows() * kv_width();
  for (bool again : {false, true})
    for (int i : {0, 1})
      keys_[again][i] = b_.scratch(fmt::format("ring.keys{}.{}", again ? "_again" : "", i), bytes_of(elems, o.dtype));
  for (int i : {0, 1}) gradients_[i] = b_.scratch(fmt::format("ring.gradients.{}", i), bytes_of(elems, DType::f32));
  share_ = b_.scratch("ring.share", bytes_of(elems, DType::f32));
  carried_ = b_.scratch("ring.carried", bytes_of(b_.rows() * b_.heads() * (b_.head_dim() + 2), DType::f32));
}

void Ring::start_keys(Slice qkv, bool again) {
  const ModelOptions& o = b_.options();
  const Slice to = keys(0, again);
  const int64_t begin = b_.heads() * b_.head_dim();
  const kernels::ColumnsTake shape{
      .rows = b_.rows(), .width = kv_width(), .from_stride = b_.qkv_width(), .dtype = o.dtype};
  b_.work("take_keys", kernels::columns_take_cost(shape), {qkv}, {to}, {.rule = Rule::copy}, [=](LaunchContext& c) {
    kernels::ColumnsTake args = shape;
    args.from = c.at(qkv) + begin * size_of(shape.dtype);
    args.to = c.at(to);
    kernels::columns_take(c, args);
  });
  for (int step = 1; step <= 2 && step < ranks(); ++step) exchange_keys(step, again);
}

void Ring::exchange_keys(int step, bool again) {
  b_.communicate({.name = fmt::format("exchange_keys{}.{}", again ? "_again" : "", step),
                  .channel = Role::ring,
                  .axis = Axis::context,
                  .op = Op::exchange,
                  .peer = -1,
                  .from = keys(step - 1, again),
                  .to = keys(step, again),
                  .dtype = b_.options().dtype,
                  .elems = b_.rows() * kv_width()});
}

void Ring::exchange_gradients(int step) {
  b_.communicate({.name = fmt::format("exchange_key_gradients.{}", step),
                  .channel = Role::ring_gradients,
                  .axis = Axis::context,
                  .op = Op::exchange,
                  .peer = -1,
                  .from = gradients(step),
                  .to = gradients(step + 1),
                  .dtype = DType::f32,
                  .elems = b_.rows() * kv_width()});
}

void Ring::block(const AttentionLayer& layer, double dropout_rate, int step, Slice qkv, Slice out, Slice lse) {
  const bool first = step == 0, last = step + 1 == ranks();
  const KeysAt kv = keys_at(b_, step, qkv, keys(step, false));
  const int64_t rows = b_.rows() * b_.heads(), elem_bytes = size_of(b_.options().dtype), elems = rows * b_.head_dim();
  const Slice carried = carried_;
  const kernels::AttentionBlockForward shape{.all = in_step(b_.attention_shape(layer, kv.stride), chunks_, step),
                                             .block = chunks_.block(chunks_.owner(step)),
                                             .carried = {},
                                             .first = first,
                                             .last = last};
  const Cost cost = cost_of_step(shape, step, kernels::attention_block_forward_cost);
  const Slice begins = b_.document_begins();
  const Slice numbers = b_.sequence_numbers(dropout_rate);
  const kernels::AttentionDropout dropout = b_.attention_dropout(layer.index, dropout_rate);
  std::vector<Slice> reads = with(with({qkv}, begins), numbers), writes;
  if (!first) reads.insert(reads.end(), {kv.rows, carried});
  if (last)
    writes = {out, lse};
  else
    writes = {carried};
  const Meaning meaning{.rule = Rule::attention_block,
                        .results = static_cast<uint8_t>(writes.size()),
                        .step = static_cast<int16_t>(step)};
  b_.work("attention_block", cost, reads, writes, meaning, [=](LaunchContext& c) {
    kernels::AttentionBlockForward args = shape;
    const kernels::AttentionDropout dropped = with_samples(c, dropout, numbers);
    if (numbers.size_bytes > 0) args.all.dropout = &dropped;
    if (begins.size_bytes > 0) args.all.document_begins = c.as<int32_t>(begins);
    args.all.q = c.at(qkv);
    args.all.k = c.at(kv.rows) + kv.k * elem_bytes;
    args.all.v = c.at(kv.rows) + kv.v * elem_bytes;
    float* const at = c.as<float>(carried);
    args.carried = {.out = at, .maximum = at + elems, .sum = at + elems + rows};
    if (last) {
      args.all.out = c.at(out);
      args.all.lse = c.as<float>(lse);
    }
    kernels::attention_block_forward(c, args);
    if (!last || args.block.first_query == 0) return;
    // The early queries have already seen all their keys.
    args.block = {.first_query = 0, .queries = args.block.first_query, .first_key = 0, .keys = 0, .causal = false};
    kernels::attention_block_forward(c, args);
  });
}

void Ring::forward(const AttentionLayer& layer, double dropout_rate, Slice qkv, Slice out, Slice lse) {
  start_keys(qkv, false);
  for (int step = 0; step < ranks(); ++step) {
    b_.begin(fmt::format("attention_block.{}", step), layer.index);
    block(layer, dropout_rate, step, qkv, out, lse);
    if (step > 0 && step + 2 < ranks()) exchange_keys(step + 2, false);
  }
}

void Ring::fetch(int layer, Slice qkv) {
  b_.begin("ring_keys", layer);
  start_keys(qkv, true);
}

void Ring::block_gradient(const AttentionLayer& layer, int step, Slice dout, Slice qkv, Slice out, Slice lse,
                          Slice dqkv, Slice dkv) {
  const bool last = step == 0;
  const KeysAt kv = keys_at(b_, step, qkv, keys(step, true));
  const int64_t elem_bytes = size_of(b_.options().dtype);
  const Slice dq_sum = this->dq_sum(), workspace = b_.attention_workspace();
  const kernels::AttentionBlockBackward shape{
      .all = in_step(b_.attention_gradient_shape(layer, kv.stride), chunks_, step),
      .block = chunks_.block(chunks_.owner(step)),
      .first = false,
      .last = last};
  const Cost cost = cost_of_step(shape, step, kernels::attention_block_backward_cost);
  const Slice begins = b_.document_begins();
  const double dropout_rate = b_.options().dropout.attention;
  const Slice numbers = b_.sequence_numbers(dropout_rate);
  const kernels::AttentionDropout dropout = b_.attention_dropout(layer.index, dropout_rate);
  std::vector<Slice> reads = with(with({dout, qkv, out, lse, dq_sum}, begins), numbers);
  if (!last) reads.push_back(kv.rows);
  const Meaning meaning{.rule = Rule::attention_block_gradient, .results = 2, .step = static_cast<int16_t>(step)};
  b_.work("attention_block_gradient", cost, reads, {dkv, last ? dqkv : dq_sum, workspace}, meaning,
          [=](LaunchContext& c) {
            kernels::AttentionBlockBackward args = shape;
            const kernels::AttentionDropout dropped = with_samples(c, dropout, numbers);
            if (numbers.size_bytes > 0) args.all.dropout = &dropped;
            if (begins.size_bytes > 0) args.all.document_begins = c.as<int32_t>(begins);
            args.all.dout = c.at(dout);
            args.all.q = c.at(qkv);
            args.all.k = c.at(kv.rows) + kv.k * elem_bytes;
            args.all.v = c.at(kv.rows) + kv.v * elem_bytes;
            args.all.out = c.at(out);
            args.all.lse = c.as<float>(lse);
            args.all.dq = last ? c.at(dqkv) : nullptr;
            args.all.workspace = c.as<float>(workspace);
            args.dq_sum = c.as<float>(dq_sum);
            args.dkv = c.as<float>(dkv);
            kernels::attention_block_backward(c, args);
          });
}

void Ring::backward(const AttentionLayer& layer, Slice dout, Slice qkv, Slice out, Slice lse, Slice dqkv) {
  const Slice dq_sum = this->dq_sum(), share = share_;
  for (int step = 1; step < ranks(); ++step) {
    const Slice sum = gradients(step);
    b_.begin(fmt::format("attention_block_gradient.{}", step), layer.index);
    // The exchange must not start earlier: a recomputed forward pass ends before the first piece that reads its output,
    // and uses the same memory for its carried values.
    if (step == 1)
      b_.work("zero_dq", {0, dq_sum.size_bytes}, {}, {dq_sum}, {.rule = Rule::clear},
              [=](LaunchContext& c) { kernels::zero(c, {.to = c.at(dq_sum), .size_bytes = dq_sum.size_bytes}); });
    block_gradient(layer, step, dout, qkv, out, lse, dqkv, step == 1 ? sum : share);
    if (step + 2 < ranks()) exchange_keys(step + 2, true);
    if (step > 1) {
      // This is a separate piece, so that the sums of the previous ranks arrive while the block runs.
      b_.begin(fmt::format("add_key_gradients.{}", step), layer.index);
      const int64_t elems = b_.rows() * kv_width();
      b_.work(
          "add", kernels::add_cost({.elems = elems}), {share, sum}, {sum}, {.rule = Rule::add, .adds = Adds::always},
          [=](LaunchContext& c) { kernels::add(c, {.x = c.as<float>(share), .y = c.as<float>(sum), .elems = elems}); });
    }
    exchange_gradients(step);
  }
  b_.begin("attention_block_gradient.0", layer.index);
  block_gradient(layer, 0, dout, qkv, out, lse, dqkv, share);
  b_.begin("key_gradients", layer.index);
  const Slice home = gradients(ranks());
  const int64_t begin = b_.heads() * b_.head_dim();
  const kernels::ColumnsSum shape{
      .rows = b_.rows(), .width = kv_width(), .to_stride = b_.qkv_width(), .dtype = b_.options().dtype};
  b_.work("sum_key_gradients", kernels::columns_sum_cost(shape), {share, home}, {dqkv}, {.rule = Rule::add},
          [=](LaunchContext& c) {
            kernels::ColumnsSum args = shape;
            args.a = c.as<float>(share);
            args.b = c.as<float>(home);
            args.to = c.at(dqkv) + begin * size_of(shape.dtype);
            kernels::columns_sum(c, args);
          });
}

}  // namespace slipstream::models
