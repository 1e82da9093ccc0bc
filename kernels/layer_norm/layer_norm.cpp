// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of layer norm.

#include "kernels/layer_norm/layer_norm.h"

#include "engine/base/check.h"
#include "kernels/common/checks.h"
#include "kernels/common/row_blocks.h"
#include "kernels/matmul/matmul.h"

namespace slipstream::kernels {

void layer_norm_forward(LaunchContext& context, const LayerNormForward& args) {
  constexpr std::string_view op = "layer_norm_forward";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "width", args.width, 1);
  if (args.delta && !args.sum)
    throw ShapeError("[{}] delta is set and sum is null. Pass memory for x + delta in sum.", op);
  if (args.rows == 0) return;
  require_pointers(op, {args.x, args.weight, args.bias, args.y, args.mean, args.inv_std});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return layer_norm_forward_cuda(context, args);
  SLIP_CALL_ISA(layer_norm_forward_cpu(context, args));
}

void layer_norm_backward(LaunchContext& context, const LayerNormBackward& args) {
  constexpr std::string_view op = "layer_norm_backward";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "width", args.width, 1);
  require_pointers(op, {args.weight, args.dweight, args.dbias});
  if (args.rows > 0) require_pointers(op, {args.dy, args.x, args.mean, args.inv_std, args.dx, args.workspace});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return layer_norm_backward_cuda(context, args);
  SLIP_CALL_ISA(layer_norm_backward_cpu(context, args));
  // This is the bias gradient of a layer without inputs.
  if (args.dx_sums)
    matmul_backward_weight(context, {.dy = args.dx,
                                     .dbias = args.dx_sums,
                                     .rows = args.rows,
                                     .out = args.width,
                                     .dtype = args.dtype,
                                     .accumulate = args.accumulate});
}

Cost layer_norm_forward_cost(const LayerNormForward& args) {
  const int64_t elems = args.rows * args.width;
  return {(args.delta ? 10 : 9) * elems,
          bytes_of((args.delta ? 4 : 2) * elems + 2 * args.width, args.dtype) + 8 * args.rows};
}

Cost layer_norm_backward_cost(const LayerNormBackward& args) {
  const int64_t elems = args.rows * args.width;
  const int64_t sums = args.dx_sums ? 3 : 2;
  return {(args.residual ? 16 : 15) * elems + sums * elems,
          bytes_of((args.residual ? 4 : 3) * elems + args.width, args.dtype) +
              (args.accumulate ? 2 : 1) * sums * 4 * args.width + 8 * args.rows};
}

int64_t layer_norm_backward_workspace_elems(int64_t rows, int64_t width) { return 2 * width * RowBlocks{rows}.count(); }

}  // namespace slipstream::kernels
