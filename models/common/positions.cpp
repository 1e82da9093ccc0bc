// SPDX-License-Identifier: Apache-2.0
// Positions of tokens: rotary tables; learned positions of sequences, of which a rank with two chunks copies its rows
// next to each other and adds their gradients back in place; and learned positions of documents, which are looked up
// row by row.

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cast/cast.h"
#include "kernels/embedding/embedding.h"
#include "kernels/rope/rope.h"
#include "kernels/step_scalars/step_scalars.h"
#include "models/common/blocks.h"

namespace slipstream::models {
namespace {

/// Returns the rows of `table` ([positions, width]) for this rank's chunk `which`.
Slice rows_of_chunk(const ContextChunks& chunks, int which, const Slice& table, int64_t row_bytes) {
  return {table.buffer, table.begin_bytes + chunks.begin(which) * row_bytes, chunks.chunk_tokens() * row_bytes};
}
/// Returns the same rows in the buffer in which the two chunks are next to each other.
Slice half(int which, const Slice& own) {
  return {own.buffer, own.begin_bytes + which * own.size_bytes / 2, own.size_bytes / 2};
}

}  // namespace

Slice SpecBuilder::rotary_table() {
  if (rotary_.size_bytes > 0) return rotary_;
  const int64_t hd = head_dim();
  rotary_ = scratch("rotary_table",
                    bytes_of((options_.context_ranks > 1 ? options_.tokens : options_.context) * hd, DType::f32));
  spec_.constants.push_back({rotary_.buffer, [o = options_, hd](std::byte* host) {
                               auto* const table = reinterpret_cast<float*>(host);
                               if (o.context_ranks == 1)
                                 return kernels::rope_table(table, o.context, hd, o.rope_theta, o.rope_scaling);
                               // Row t of the table rotates token t of the rank, which has another position in its
                               // sequence.
                               std::vector<float> whole(static_cast<size_t>(o.context * hd));
                               kernels::rope_table(whole.data(), o.context, hd, o.rope_theta, o.rope_scaling);
                               for (int64_t t = 0; t < o.tokens; ++t)
                                 std::copy_n(whole.data() + o.chunks().position(t) * hd, hd, table + t * hd);
                             }});
  return rotary_;
}

void SpecBuilder::rotate(Slice qkv, bool inverse) {
  const int64_t hd = head_dim(), k_bytes = heads() * hd * size_of(options_.dtype);
  const Slice table = rotary_table();
  const kernels::Rope q{.batch = options_.batch,
                        .tokens = options_.tokens,
                        .heads = heads(),
                        .head_dim = hd,
                        .row_stride = qkv_width(),
                        .theta = options_.rope_theta,
                        .inverse = inverse,
                        .dtype = options_.dtype};
  kernels::Rope k = q;
  k.heads = kv_heads();
  Cost cost = kernels::rope_cost(q);
  cost += kernels::rope_cost(k);
  work(inverse ? "rope_inverse" : "rope", cost, {qkv, table}, {qkv}, {.rule = Rule::rows}, [=](LaunchContext& c) {
    kernels::Rope args = q;
    args.x = c.at(qkv);
    args.table = c.as<float>(table);
    kernels::rope(c, args);
    args = k;
    args.x = c.at(qkv) + k_bytes;
    args.table = c.as<float>(table);
    kernels::rope(c, args);
  });
}

Slice SpecBuilder::own_positions(Slice positions) {
  const int64_t row_bytes = bytes_of(options_.width, options_.dtype);
  const Slice own = scratch("positions.own", options_.tokens * row_bytes);
  std::array<Slice, 2> from, to;
  for (int which : {0, 1}) {
    from[static_cast<size_t>(which)] = rows_of_chunk(options_.chunks(), which, positions, row_bytes);
    to[static_cast<size_t>(which)] = half(which, own);
  }
  work("own_positions", {0, 2 * own.size_bytes}, {from[0], from[1]}, {own}, {.rule = Rule::copy},
       [=](LaunchContext& c) {
         for (size_t i : {0, 1})
           kernels::copy(c, {.from = c.at(from[i]), .to = c.at(to[i]), .size_bytes = to[i].size_bytes});
       });
  return own;
}

void SpecBuilder::add_own_positions(Slice own, Slice gradient) {
  const int64_t row_bytes = bytes_of(options_.width, DType::f32);
  std::array<Slice, 2> from, to;
  for (int which : {0, 1}) {
    from[static_cast<size_t>(which)] = half(which, own);
    to[static_cast<size_t>(which)] = rows_of_chunk(options_.chunks(), which, gradient, row_bytes);
  }
  const Meaning meaning{.rule = Rule::add, .results = 0, .sums = 1, .adds = Adds::as_planned};
  work("add_own_positions", {own.size_bytes / 4, 3 * own.size_bytes}, {own, gradient}, {gradient}, meaning,
       [=](LaunchContext& c) {
         if (!adds(meaning, c)) kernels::zero(c, {.to = c.at(gradient), .size_bytes = gradient.size_bytes});
         for (size_t i : {0, 1})
           kernels::add(c, {.x = c.as<float>(from[i]), .y = c.as<float>(to[i]), .elems = to[i].size_bytes / 4});
       });
}

Slice SpecBuilder::document_positions() {
  if (!options_.documents) return {};
  // The positions are computed again for every use, because between forward and backward of a micro-batch other
  // micro-batches use the same memory.
  const kernels::DocumentPositions shape{
      .batch = options_.batch, .tokens = options_.tokens, .chunks = options_.chunks()};
  const Slice begins = document_begins_, to = scratch("positions.of_documents", bytes_of(rows(), DType::i32));
  work("document_positions", kernels::document_positions_cost(shape), {begins}, {to}, {.rule = Rule::copy},
       [=](LaunchContext& c) {
         kernels::DocumentPositions args = shape;
         args.begins = c.as<int32_t>(begins);
         args.positions = c.as<int32_t>(to);
         kernels::document_positions(c, args);
       });
  return to;
}

void SpecBuilder::position_gradient(uint32_t positions, Slice dx) {
  const Slice dp = gradient(positions);
  if (const Slice places = document_positions(); places.size_bytes > 0) {
    const kernels::EmbeddingBackward shape{
        .rows = rows(), .width = options_.width, .vocab = options_.context, .dtype = options_.dtype};
    const Meaning meaning{.rule = Rule::scatter, .results = 0, .sums = 1, .rows_of = 1, .adds = Adds::as_planned};
    work("position_gradient", kernels::embedding_backward_cost(shape), {places, dx, dp}, {dp}, meaning,
         [=](LaunchContext& c) {
           kernels::EmbeddingBackward args = shape;
           args.ids = c.as<int32_t>(places);
           args.dy = c.at(dx);
           args.dtable = c.as<float>(dp);
           args.accumulate = adds(meaning, c);
           kernels::embedding_backward(c, args);
         });
    return ready(positions);
  }
  const bool spread = options_.context_ranks > 1;
  const Slice to = spread ? scratch("positions.own_gradient", options_.tokens * options_.width * 4) : dp;
  const kernels::PositionBackward shape{.batch = options_.batch,
                                        .tokens = options_.tokens,
                                        .width = options_.width,
                                        .positions = spread ? options_.tokens : options_.context,
                                        .dtype = options_.dtype};
  const Meaning meaning{
      .rule = Rule::scatter, .results = 0, .sums = 1, .adds = spread ? Adds::never : Adds::as_planned};
  work("position_gradient", kernels::position_backward_cost(shape), spread ? std::vector{dx} : std::vector{dx, to},
       {to}, meaning, [=](LaunchContext& c) {
         kernels::PositionBackward args = shape;
         args.dy = c.at(dx);
         args.dpositions = c.as<float>(to);
         args.accumulate = adds(meaning, c);
         kernels::position_backward(c, args);
       });
  if (spread) add_own_positions(to, dp);
  ready(positions);
}

}  // namespace slipstream::models
