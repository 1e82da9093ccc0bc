// SPDX-License-Identifier: Apache-2.0
// Shape checks, costs, tiles and dispatch of the matrix products.

#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "kernels/common/checks.h"
#include "kernels/gelu/gelu.h"
#include "kernels/matmul/matmul_cpu.h"
#include "kernels/matmul/product.h"

namespace slipstream::kernels {
namespace {

// Tiles are multiples of this in both directions, so that every vector register of the product is full inside the
// matrix.
constexpr int64_t kTileMultiple = 16;
// Below this many multiplications, waking a thread costs more than it saves.
constexpr int64_t kMinTileWork = 1 << 17;
// The number of multiplications in the time of packing one element of an operand.
constexpr int64_t kPackWork = 16;

struct Area {
  std::unique_ptr<float, decltype(&std::free)> memory{nullptr, &std::free};
  int64_t elems = 0;
};

/// Throws: ShapeError unless 0 <= padding <= out.
void require_padding(std::string_view op, int64_t padding, int64_t out) {
  require_at_least(op, "padding", padding, 0);
  if (padding > out)
    throw ShapeError("[{}] more padding than columns: got padding = {}, need at most out = {}.", op, padding, out);
}

int64_t stride_of(const MatmulBackwardWeight& args) { return args.dy_stride == 0 ? args.out : args.dy_stride; }

}  // namespace

float* product_scratch(Scratch slot, int64_t elems) {
  thread_local std::array<Area, 3> areas;
  Area& area = areas[static_cast<size_t>(slot)];
  if (area.elems < elems) {
    const int64_t size_bytes = round_up(elems * size_of(DType::f32), 64);
    area.memory.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(size_bytes))));
    area.elems = area.memory ? elems : 0;
    if (!area.memory)
      throw ResourceError("[matmul] no memory for {} of scratch. Use a smaller model or fewer threads.",
                          format_bytes(size_bytes));
  }
  return area.memory.get();
}

TileSplit split_tiles(int64_t m, int64_t n, int64_t k, int threads) {
  const int64_t useful = std::clamp<int64_t>(m * n * k / kMinTileWork, 1, threads);
  TileSplit best;
  int64_t best_work = -1;
  for (int64_t m_tiles = 1; m_tiles <= useful; ++m_tiles) {
    const int64_t m_tile = std::min(m, round_up(ceil_div(m, m_tiles), kTileMultiple));
    const int64_t n_tile = std::min(n, round_up(ceil_div(n, useful / m_tiles), kTileMultiple));
    const int64_t work = m_tile * n_tile + kPackWork * (m_tile + n_tile);
    if (best_work >= 0 && work >= best_work) continue;
    best_work = work;
    best = {m_tile, n_tile, ceil_div(m, m_tile), ceil_div(n, n_tile)};
  }
  return best;
}

void matmul_forward(LaunchContext& context, const MatmulForward& args) {
  if (context.kind == DeviceKind::sim) no_kernel("matmul_forward", context.kind);
  require_at_least("matmul_forward", "rows", args.rows, 0);
  require_at_least("matmul_forward", "in", args.in, 0);
  require_at_least("matmul_forward", "out", args.out, 0);
  require_padding("matmul_forward", args.padding, args.out);
  require_activation_dtype("matmul_forward", args.dtype);
  if (args.rows == 0 || args.out == 0) return;
  require_pointers("matmul_forward", {args.y});
  if (args.in > 0) require_pointers("matmul_forward", {args.x, args.weight});
  if (context.kind == DeviceKind::cuda) return matmul_forward_cuda(context, args);
  SLIP_CALL_ISA(matmul_forward_cpu(context, args))
}

void matmul_backward_input(LaunchContext& context, const MatmulBackwardInput& args) {
  if (context.kind == DeviceKind::sim) no_kernel("matmul_backward_input", context.kind);
  require_at_least("matmul_backward_input", "rows", args.rows, 0);
  require_at_least("matmul_backward_input", "in", args.in, 0);
  require_at_least("matmul_backward_input", "out", args.out, 0);
  require_padding("matmul_backward_input", args.padding, args.out);
  require_activation_dtype("matmul_backward_input", args.dtype);
  // The sums of dx over its rows are a weight gradient without inputs.
  const MatmulBackwardWeight sums{.dy = args.dx,
                                  .dbias = args.dbias,
                                  .rows = args.rows,
                                  .out = args.in,
                                  .dtype = args.dtype,
                                  .accumulate = args.accumulate_bias};
  if (args.rows == 0 && args.dbias) matmul_backward_weight(context, sums);
  if (args.rows == 0 || args.in == 0) return;
  require_pointers("matmul_backward_input", {args.dx});
  if (args.out > 0) require_pointers("matmul_backward_input", {args.dy, args.weight});
  if (args.pre_activation && args.accumulate)
    throw ShapeError(
        "[matmul_backward_input] the gradient of GELU needs the complete sum: add first, then call gelu_backward. Got "
        "accumulate with pre_activation.");
  if (context.kind == DeviceKind::cuda) return matmul_backward_input_cuda(context, args);
  SLIP_CALL_ISA(matmul_backward_input_cpu(context, args))
  if (args.pre_activation)
    gelu_backward(context, {args.dx, args.pre_activation, args.dx, args.rows * args.in, args.dtype});
  if (args.dbias) matmul_backward_weight(context, sums);
}

void matmul_backward_weight(LaunchContext& context, const MatmulBackwardWeight& args) {
  if (context.kind == DeviceKind::sim) no_kernel("matmul_backward_weight", context.kind);
  require_at_least("matmul_backward_weight", "rows", args.rows, 0);
  require_at_least("matmul_backward_weight", "in", args.in, 0);
  require_at_least("matmul_backward_weight", "out", args.out, 0);
  require_at_least("matmul_backward_weight", "dy_stride", args.dy_stride, 0);
  require_padding("matmul_backward_weight", args.padding, args.out);
  require_activation_dtype("matmul_backward_weight", args.dtype);
  if (stride_of(args) < args.out)
    throw ShapeError("[matmul_backward_weight] rows of dy overlap: got dy_stride = {}, need at least out = {}.",
                     args.dy_stride, args.out);
  if (args.out == 0 || (args.in == 0 && args.dbias == nullptr)) return;
  if (args.in > 0) require_pointers("matmul_backward_weight", {args.dweight});
  if (args.rows > 0) require_pointers("matmul_backward_weight", {args.dy});
  if (args.rows > 0 && args.in > 0) require_pointers("matmul_backward_weight", {args.x});
  MatmulBackwardWeight resolved = args;
  resolved.dy_stride = stride_of(args);
  if (context.kind == DeviceKind::cuda) return matmul_backward_weight_cuda(context, resolved);
  SLIP_CALL_ISA(matmul_backward_weight_cpu(context, resolved))
}

namespace {
/// A product with results [rows, cols] and sums over `depth`.
Cost product(int64_t rows, int64_t cols, int64_t depth, int64_t flops, int64_t bytes) {
  return {flops,
          bytes,
          {{.kind = KernelKind::product, .flops = flops, .bytes = bytes, .rows = rows, .cols = cols, .depth = depth}}};
}
}  // namespace

Cost matmul_forward_cost(const MatmulForward& args) {
  const int64_t out = args.out - args.padding, results = args.rows * out;
  const int64_t moved =
      args.rows * args.in + out * args.in + results * (args.pre_activation ? 2 : 1) + (args.bias ? out : 0);
  // GELU counts as the 8 operations of its formula, with tanh as one.
  return product(args.rows, out, args.in,
                 2 * results * args.in + (args.bias ? results : 0) + (args.pre_activation ? 8 * results : 0),
                 bytes_of(moved, args.dtype));
}

Cost matmul_backward_input_cost(const MatmulBackwardInput& args) {
  const int64_t out = args.out - args.padding, results = args.rows * args.in;
  // The gradient of GELU counts as the 32 operations of its card, and one read of its input.
  return product(args.rows, args.in, out,
                 2 * results * out + (args.pre_activation ? 32 * results : 0) + (args.dbias ? results : 0),
                 bytes_of(args.rows * out + out * args.in + results * (args.accumulate || args.pre_activation ? 2 : 1),
                          args.dtype) +
                     (args.dbias ? bytes_of(args.in * (args.accumulate_bias ? 2 : 1), DType::f32) : 0));
}

Cost matmul_backward_weight_cost(const MatmulBackwardWeight& args) {
  const int64_t out = args.out - args.padding, results = out * args.in + (args.dbias ? out : 0);
  return product(
      out, args.in, args.rows, 2 * args.rows * out * args.in + (args.dbias ? args.rows * out : 0),
      bytes_of(args.rows * (args.in + out), args.dtype) + bytes_of(results * (args.accumulate ? 2 : 1), DType::f32));
}

}  // namespace slipstream::kernels
