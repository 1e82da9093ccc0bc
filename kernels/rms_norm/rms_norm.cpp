// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of RMS norm.

#include "kernels/rms_norm/rms_norm.h"

#include "engine/base/check.h"
#include "kernels/common/checks.h"
#include "kernels/common/row_blocks.h"

namespace slipstream::kernels {

void rms_norm_forward(LaunchContext& context, const RmsNormForward& args) {
  constexpr std::string_view op = "rms_norm_forward";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "width", args.width, 1);
  if (args.delta && !args.sum)
    throw ShapeError("[{}] delta is set and sum is null. Pass memory for x + delta in sum.", op);
  if (args.rows == 0) return;
  require_pointers(op, {args.x, args.weight, args.y, args.inv_rms});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return rms_norm_forward_cuda(context, args);
  SLIP_CALL_ISA(rms_norm_forward_cpu(context, args));
}

void rms_norm_backward(LaunchContext& context, const RmsNormBackward& args) {
  constexpr std::string_view op = "rms_norm_backward";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "width", args.width, 1);
  require_pointers(op, {args.weight, args.dweight});
  if (args.rows > 0) require_pointers(op, {args.dy, args.x, args.inv_rms, args.dx, args.workspace});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return rms_norm_backward_cuda(context, args);
  SLIP_CALL_ISA(rms_norm_backward_cpu(context, args));
}

Cost rms_norm_forward_cost(const RmsNormForward& args) {
  const int64_t elems = args.rows * args.width;
  return {(args.delta ? 5 : 4) * elems,
          bytes_of((args.delta ? 4 : 2) * elems + args.width, args.dtype) + 4 * args.rows};
}

Cost rms_norm_backward_cost(const RmsNormBackward& args) {
  const int64_t elems = args.rows * args.width;
  return {(args.residual ? 12 : 11) * elems, bytes_of((args.residual ? 4 : 3) * elems + args.width, args.dtype) +
                                                 (args.accumulate ? 2 : 1) * 4 * args.width + 4 * args.rows};
}

int64_t rms_norm_backward_workspace_elems(int64_t rows, int64_t width) { return width * RowBlocks{rows}.count(); }

}  // namespace slipstream::kernels
