// SPDX-License-Identifier: Apache-2.0
// Embeddings on the CPU. Threads share the width wherever rows are added.

#include "kernels/embedding/embedding_cpu.h"

#include "kernels/common/simd.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

// The columns per unit of the split over threads: a cache line of float.
constexpr int64_t kColumns = 16;
// Below this many elements, waking a thread costs more than it saves.
constexpr int64_t kGrainElems = 1 << 14;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// Calls body(first column, columns) on slices of the width; `rows` is the number of rows of each slice.
template <typename Body>
void for_columns(LaunchContext& context, int64_t rows, int64_t width, const Body& body) {
  const int64_t grain = 1 + kGrainElems / (kColumns * (rows + 1));
  context.parallel_for((width + kColumns - 1) / kColumns, grain, [&](int64_t begin, int64_t end) {
    body(begin * kColumns, smaller(width, end * kColumns) - begin * kColumns);
  });
}

template <typename T>
void add_row(const T* from, float* to, int64_t elems) {
  int64_t i = 0;
  for (; i + kLanes <= elems; i += kLanes) store(to + i, load(to + i) + load(from + i));
  for (; i < elems; ++i) to[i] += static_cast<float>(from[i]);
}

void zero(float* to, int64_t elems) { std::memset(to, 0, static_cast<size_t>(elems) * sizeof(float)); }

template <typename T>
void sum_of_rows(const T* a, const T* b, T* y, int64_t elems) {
  int64_t i = 0;
  for (; i + kLanes <= elems; i += kLanes) store(y + i, load(a + i) + load(b + i));
  if (i < elems) store_part(y + i, load_part(a + i, elems - i) + load_part(b + i, elems - i), elems - i);
}

template <typename T>
void forward(LaunchContext& context, const EmbeddingForward& args) {
  const auto* table = static_cast<const T*>(args.table);
  const auto* positions = static_cast<const T*>(args.positions);
  auto* y = static_cast<T*>(args.y);
  context.parallel_for(args.batch * args.tokens, 1 + kGrainElems / args.width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t id = args.ids[row] - args.first;
      const bool held = !args.part || (id >= 0 && id < args.vocab);
      const T* from = table + id * args.width;
      const int64_t place = args.position_ids == nullptr ? row % args.tokens : args.position_ids[row];
      if (!held && positions == nullptr)
        std::memset(static_cast<void*>(y + row * args.width), 0, static_cast<size_t>(args.width) * sizeof(T));
      else if (!held)
        std::memcpy(static_cast<void*>(y + row * args.width), positions + place * args.width,
                    static_cast<size_t>(args.width) * sizeof(T));
      else if (positions == nullptr)
        std::memcpy(static_cast<void*>(y + row * args.width), from, static_cast<size_t>(args.width) * sizeof(T));
      else
        sum_of_rows(from, positions + place * args.width, y + row * args.width, args.width);
    }
  });
}

template <typename T>
void backward(LaunchContext& context, const EmbeddingBackward& args) {
  const auto* dy = static_cast<const T*>(args.dy);
  for_columns(context, args.rows, args.width, [&](int64_t column, int64_t columns) {
    for (int64_t row = 0; row < args.rows; ++row) {
      const int64_t id = args.ids[row] - args.first;
      if (args.part && (id < 0 || id >= args.vocab)) continue;
      add_row(dy + row * args.width + column, args.dtable + id * args.width + column, columns);
    }
  });
}

template <typename T>
void backward_positions(LaunchContext& context, const PositionBackward& args) {
  const auto* dy = static_cast<const T*>(args.dy);
  const int64_t grain = 1 + kGrainElems / (args.width * (args.batch + 1));
  context.parallel_for(args.positions, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* to = args.dpositions + t * args.width;
      if (!args.accumulate) zero(to, args.width);
      for (int64_t b = 0; t < args.tokens && b < args.batch; ++b)
        add_row(dy + (b * args.tokens + t) * args.width, to, args.width);
    }
  });
}

template <typename T>
void pack(LaunchContext& context, const EmbeddingRowsPack& args, const Chains& chains) {
  const auto* dy = static_cast<const T*>(args.dy);
  for_columns(context, args.tokens_total, args.width, [&](int64_t column, int64_t columns) {
    for (int64_t row = 0; row < args.tokens_total; ++row) zero(args.rows + row * args.width + column, columns);
    for (int64_t chain = 0; chain < chains.count; ++chain)
      for (int32_t row = chains.firsts[chain]; row >= 0; row = chains.next[row])
        add_row(dy + row * args.width + column, args.rows + chains.firsts[chain] * args.width + column, columns);
  });
}

/// Sums the rows of one chain in a part of L1, and then adds the sum to the table once.
void add_chain(const EmbeddingRowsAdd& args, const Chains& chains, int32_t first, int64_t column, int64_t columns) {
  constexpr int64_t kPart = 256;
  alignas(64) float sums[kPart];
  for (int64_t at = column; at < column + columns; at += kPart) {
    const int64_t elems = smaller(kPart, column + columns - at);
    zero(sums, elems);
    for (int32_t row = first; row >= 0; row = chains.next[row]) add_row(args.rows + row * args.width + at, sums, elems);
    add_row(sums, args.dtable + args.row_ids[first] * args.width + at, elems);
  }
}

}  // namespace

void embedding_forward_cpu(LaunchContext& context, const EmbeddingForward& args) {
  args.dtype == DType::f32 ? forward<float>(context, args) : forward<bfloat16>(context, args);
}

void embedding_backward_cpu(LaunchContext& context, const EmbeddingBackward& args) {
  // The table is zeroed first, in contiguous ranges, because zeroing by columns would write with strides.
  if (!args.accumulate)
    context.parallel_for(args.vocab * args.width, kGrainElems,
                         [&](int64_t begin, int64_t end) { zero(args.dtable + begin, end - begin); });
  args.dtype == DType::f32 ? backward<float>(context, args) : backward<bfloat16>(context, args);
}

void position_backward_cpu(LaunchContext& context, const PositionBackward& args) {
  args.dtype == DType::f32 ? backward_positions<float>(context, args) : backward_positions<bfloat16>(context, args);
}

void embedding_rows_pack_cpu(LaunchContext& context, const EmbeddingRowsPack& args, const Chains& chains) {
  for (int64_t row = 0; row < args.tokens_total; ++row) args.row_ids[row] = -1;
  for (int64_t chain = 0; chain < chains.count; ++chain)
    args.row_ids[chains.firsts[chain]] = args.ids[chains.firsts[chain]];
  args.dtype == DType::f32 ? pack<float>(context, args, chains) : pack<bfloat16>(context, args, chains);
}

void embedding_rows_add_cpu(LaunchContext& context, const EmbeddingRowsAdd& args, const Chains& chains) {
  for_columns(context, args.ranks * args.capacity, args.width, [&](int64_t column, int64_t columns) {
    for (int64_t chain = 0; chain < chains.count; ++chain)
      add_chain(args, chains, chains.firsts[chain], column, columns);
  });
}

}  // namespace slipstream::kernels::SLIP_ISA
