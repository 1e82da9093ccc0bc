// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of SwiGLU.

#include "kernels/swiglu/swiglu.h"

#include "kernels/common/checks.h"

namespace slipstream::kernels {

void swiglu_forward(LaunchContext& context, const SwigluForward& args) {
  constexpr std::string_view op = "swiglu_forward";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "width", args.width, 1);
  if (args.rows == 0) return;
  require_pointers(op, {args.gate_up, args.y});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return swiglu_forward_cuda(context, args);
  SLIP_CALL_ISA(swiglu_forward_cpu(context, args));
}

void swiglu_backward(LaunchContext& context, const SwigluBackward& args) {
  constexpr std::string_view op = "swiglu_backward";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "width", args.width, 1);
  if (args.rows == 0) return;
  require_pointers(op, {args.dy, args.gate_up, args.dgate_up});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return swiglu_backward_cuda(context, args);
  SLIP_CALL_ISA(swiglu_backward_cpu(context, args));
}

Cost swiglu_forward_cost(const SwigluForward& args) {
  return {21 * args.rows * args.width, bytes_of(3 * args.rows * args.width, args.dtype)};
}
Cost swiglu_backward_cost(const SwigluBackward& args) {
  return {27 * args.rows * args.width, bytes_of(5 * args.rows * args.width, args.dtype)};
}

}  // namespace slipstream::kernels
