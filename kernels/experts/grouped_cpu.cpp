// SPDX-License-Identifier: Apache-2.0
// The products of all experts on the CPU: threads share the rows of all experts, and the columns of the results.

#include <algorithm>

#include "kernels/common/simd.h"
#include "kernels/experts/grouped.h"
#include "kernels/matmul/matmul_cpu.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

// Rows and columns are split by multiples of this, so that the vector registers of a product are full.
constexpr int64_t kUnit = 16;
// Below this many multiplications, waking a thread costs more than it saves.
constexpr int64_t kMinTileWork = 1 << 17;
// The number of multiplications in the time of packing one element of an operand.
constexpr int64_t kPackWork = 16;

int64_t ceil_units(int64_t count, int64_t parts) {
  const int64_t each = (count + parts - 1) / parts;
  return (each + kUnit - 1) / kUnit * kUnit;
}

const void* at(const void* p, int64_t elems, DType dtype) {
  return static_cast<const std::byte*>(p) + bytes_of(elems, dtype);
}
void* at(void* p, int64_t elems, DType dtype) { return static_cast<std::byte*>(p) + bytes_of(elems, dtype); }

/// The rows that exist, of which each has an expert.
template <typename Args>
int64_t rows_of(const Args& args) {
  return std::clamp<int64_t>(args.offsets[args.experts], 0, args.max_rows);
}

/// Calls body(expert, first row, rows, first column, columns) for every expert that has rows in each tile of the
/// results of all rows, each tile on one thread. A thread multiplies its tile and packs the weights of every expert in
/// it, so that many rows per expert are divided by rows, and few rows by columns.
template <typename Args, typename Body>
void for_tiles(LaunchContext& context, const Args& args, int64_t columns, int64_t depth, const Body& body) {
  const int64_t rows = rows_of(args);
  if (rows == 0) return;
  const int64_t useful = std::clamp<int64_t>(rows * columns * depth / kMinTileWork, 1, context.pool->threads());
  int64_t row_tile = rows, column_tile = columns, least = -1;
  for (int64_t row_tiles = 1; row_tiles <= useful; ++row_tiles) {
    const int64_t m = ceil_units(rows, row_tiles), n = ceil_units(columns, useful / row_tiles);
    const int64_t work = m * n + kPackWork * (m + (args.experts / row_tiles + 1) * n);
    if (least >= 0 && work >= least) continue;
    least = work, row_tile = m, column_tile = n;
  }
  const int64_t across = (columns + column_tile - 1) / column_tile;
  context.parallel_for((rows + row_tile - 1) / row_tile * across, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile / across * row_tile, last = std::min(rows, first + row_tile);
      const int64_t column = tile % across * column_tile;
      for (int64_t e = 0; e < args.experts; ++e) {
        const int64_t from = std::max<int64_t>(first, args.offsets[e]),
                      to = std::min<int64_t>(last, args.offsets[e + 1]);
        if (from < to) body(e, from, to - from, column, std::min(column_tile, columns - column));
      }
    }
  });
}

/// Calls body(expert, first, number) for the rows of every expert's matrix of `out` rows. Threads have equal shares of
/// the work, which of an expert is the rows that its sums add, and the time of its results.
template <typename Body>
void for_shares(LaunchContext& context, const GroupedBackwardWeight& args, const Body& body) {
  const int64_t units = (args.out + kUnit - 1) / kUnit;
  const auto work_of = [&](int64_t e) { return args.offsets[e + 1] - args.offsets[e] + kPackWork; };
  const int64_t work = (rows_of(args) + kPackWork * args.experts) * units;  // of a unit: its share of one expert's work
  const int64_t parts = std::clamp<int64_t>(work * kUnit * args.in / kMinTileWork, 1, context.pool->threads());
  context.parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = work * begin / parts, last = work * end / parts;
    int64_t before = 0;
    for (int64_t e = 0; e < args.experts; ++e) {
      const int64_t each = work_of(e);
      // The unit belongs to the part in which its work begins.
      const auto unit_at = [&](int64_t mark) {
        return std::clamp<int64_t>((mark - before + each - 1) / each, 0, units);
      };
      const int64_t from = first <= before ? 0 : unit_at(first), to = last <= before ? 0 : unit_at(last);
      if (from < to) body(e, from * kUnit, std::min(args.out, to * kUnit) - from * kUnit);
      before += each * units;
    }
  });
}

}  // namespace

void grouped_forward_cpu(LaunchContext& context, const GroupedForward& args) {
  for_tiles(context, args, args.out, args.in,
            [&](int64_t expert, int64_t row, int64_t rows, int64_t column, int64_t columns) {
              product_tile_cpu({.a = at(args.x, row * args.in, args.dtype),
                                .a_stride = args.in,
                                .b = at(args.weight, (expert * args.out + column) * args.in, args.dtype),
                                .b_stride = args.in,
                                .b_transposed = true,
                                .c = at(args.y, row * args.out + column, args.dtype),
                                .c_stride = args.out,
                                .m = rows,
                                .n = columns,
                                .k = args.in,
                                .c_dtype = args.dtype,
                                .varying = true},
                               args.dtype);
            });
}

void grouped_backward_input_cpu(LaunchContext& context, const GroupedBackwardInput& args) {
  for_tiles(context, args, args.in, args.out,
            [&](int64_t expert, int64_t row, int64_t rows, int64_t column, int64_t columns) {
              product_tile_cpu({.a = at(args.dy, row * args.out, args.dtype),
                                .a_stride = args.out,
                                .b = at(args.weight, expert * args.out * args.in + column, args.dtype),
                                .b_stride = args.in,
                                .c = at(args.dx, row * args.in + column, args.dtype),
                                .c_stride = args.in,
                                .m = rows,
                                .n = columns,
                                .k = args.out,
                                .c_dtype = args.dtype,
                                .varying = true},
                               args.dtype);
            });
}

void grouped_backward_weight_cpu(LaunchContext& context, const GroupedBackwardWeight& args) {
  for_shares(context, args, [&](int64_t expert, int64_t first, int64_t number) {
    const int64_t row = args.offsets[expert], rows = args.offsets[expert + 1] - row;
    float* const results = args.dweight + (expert * args.out + first) * args.in;
    if (rows == 0) {
      if (!args.accumulate) std::memset(results, 0, static_cast<size_t>(bytes_of(number * args.in, DType::f32)));
      return;
    }
    product_tile_cpu({.a = at(args.dy, row * args.out + first, args.dtype),
                      .a_stride = args.out,
                      .a_transposed = true,
                      .b = at(args.x, row * args.in, args.dtype),
                      .b_stride = args.in,
                      .c = results,
                      .c_stride = args.in,
                      .m = number,
                      .n = args.in,
                      .k = rows,
                      .accumulate = args.accumulate,
                      .varying = true},
                     args.dtype);
  });
}

}  // namespace slipstream::kernels::SLIP_ISA
