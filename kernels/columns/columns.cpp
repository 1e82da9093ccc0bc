// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of columns.

#include "kernels/columns/columns.h"

#include "kernels/common/checks.h"

namespace slipstream::kernels {
namespace {

/// Throws on invalid arguments; returns false if there is nothing to do.
bool check(std::string_view op, int64_t rows, int64_t width, std::string_view stride_name, int64_t stride,
           DType dtype) {
  require_activation_dtype(op, dtype);
  require_at_least(op, "rows", rows, 0);
  require_at_least(op, "width", width, 0);
  require_at_least(op, stride_name, stride, width);
  return rows * width > 0;
}

}  // namespace

void columns_take(LaunchContext& context, const ColumnsTake& args) {
  constexpr std::string_view op = "columns_take";
  if (!check(op, args.rows, args.width, "from_stride", args.from_stride, args.dtype)) return;
  require_pointers(op, {args.from, args.to});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return columns_take_cuda(context, args);
  SLIP_CALL_ISA(columns_take_cpu(context, args));
}

void columns_sum(LaunchContext& context, const ColumnsSum& args) {
  constexpr std::string_view op = "columns_sum";
  if (!check(op, args.rows, args.width, "to_stride", args.to_stride, args.dtype)) return;
  require_pointers(op, {args.a, args.b, args.to});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return columns_sum_cuda(context, args);
  SLIP_CALL_ISA(columns_sum_cpu(context, args));
}

Cost columns_take_cost(const ColumnsTake& args) { return {0, bytes_of(2 * args.rows * args.width, args.dtype)}; }

Cost columns_sum_cost(const ColumnsSum& args) {
  const int64_t elems = args.rows * args.width;
  return {elems, 8 * elems + bytes_of(elems, args.dtype)};
}

}  // namespace slipstream::kernels
