// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of GELU.

#include "kernels/gelu/gelu.h"

#include "kernels/common/checks.h"

namespace slipstream::kernels {

void gelu_forward(LaunchContext& context, const GeluForward& args) {
  constexpr std::string_view op = "gelu_forward";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "elems", args.elems, 0);
  if (args.elems == 0) return;
  require_pointers(op, {args.x, args.y});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return gelu_forward_cuda(context, args);
  SLIP_CALL_ISA(gelu_forward_cpu(context, args));
}

void gelu_backward(LaunchContext& context, const GeluBackward& args) {
  constexpr std::string_view op = "gelu_backward";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "elems", args.elems, 0);
  if (args.elems == 0) return;
  require_pointers(op, {args.dy, args.x, args.dx});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return gelu_backward_cuda(context, args);
  SLIP_CALL_ISA(gelu_backward_cpu(context, args));
}

Cost gelu_forward_cost(const GeluForward& args) { return {25 * args.elems, bytes_of(2 * args.elems, args.dtype)}; }
Cost gelu_backward_cost(const GeluBackward& args) { return {32 * args.elems, bytes_of(3 * args.elems, args.dtype)}; }

}  // namespace slipstream::kernels
