// SPDX-License-Identifier: Apache-2.0
// Learned positions of a rank that holds two chunks of every sequence: their rows side by side, and their gradients back in place.

#include <array>

#include "kernels/cast/cast.h"
#include "kernels/step_scalars/step_scalars.h"
#include "models/common/blocks.h"

namespace slipstream::models {
namespace {

/// The rows of `table` ([positions, width]) that chunk `which` of the rank has.
Slice rows_of_chunk(const ContextChunks& chunks, int which, const Slice& table, int64_t row_bytes) {
  return {table.buffer, table.begin_bytes + chunks.begin(which) * row_bytes, chunks.chunk_tokens() * row_bytes};
}
/// The same rows where they lie side by side.
Slice half(int which, const Slice& own) { return {own.buffer, own.begin_bytes + which * own.size_bytes / 2, own.size_bytes / 2}; }

}  // namespace

Slice SpecBuilder::own_positions(Slice positions) {
  const int64_t row_bytes = bytes_of(options_.width, options_.dtype);
  const Slice own = scratch("positions.own", options_.tokens * row_bytes);
  std::array<Slice, 2> from, to;
  for (int which : {0, 1}) {
    from[static_cast<size_t>(which)] = rows_of_chunk(options_.chunks(), which, positions, row_bytes);
    to[static_cast<size_t>(which)] = half(which, own);
  }
  work("own_positions", {0, 2 * own.size_bytes}, {from[0], from[1]}, {own}, [=](LaunchContext& c) {
    for (size_t i : {0, 1}) kernels::copy(c, {.from = c.at(from[i]), .to = c.at(to[i]), .size_bytes = to[i].size_bytes});
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
  work("add_own_positions", {own.size_bytes / 4, 3 * own.size_bytes}, {own, gradient}, {gradient}, [=](LaunchContext& c) {
    if (!c.frame->accumulate) kernels::zero(c, {.to = c.at(gradient), .size_bytes = gradient.size_bytes});
    for (size_t i : {0, 1})
      kernels::add(c, {.x = c.as<float>(from[i]), .y = c.as<float>(to[i]), .elems = to[i].size_bytes / 4});
  });
}

}  // namespace slipstream::models
