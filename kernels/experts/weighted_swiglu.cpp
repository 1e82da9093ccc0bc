// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of the weighted SwiGLU.

#include "kernels/experts/weighted_swiglu.h"

#include "kernels/common/checks.h"

namespace slipstream::kernels {

void weighted_swiglu_forward(LaunchContext& context, const WeightedSwigluForward& args) {
  constexpr std::string_view op = "weighted_swiglu_forward";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "max_rows", args.max_rows, 0);
  require_at_least(op, "width", args.width, 1);
  if (args.max_rows == 0) return;
  require_pointers(op, {args.gate_up, args.weights, args.y});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return weighted_swiglu_forward_cuda(context, args);
  SLIP_CALL_ISA(weighted_swiglu_forward_cpu(context, args))
}

void weighted_swiglu_backward(LaunchContext& context, const WeightedSwigluBackward& args) {
  constexpr std::string_view op = "weighted_swiglu_backward";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "max_rows", args.max_rows, 0);
  require_at_least(op, "width", args.width, 1);
  if (args.max_rows == 0) return;
  require_pointers(op, {args.dy, args.gate_up, args.weights, args.dgate_up, args.dweights});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return weighted_swiglu_backward_cuda(context, args);
  SLIP_CALL_ISA(weighted_swiglu_backward_cpu(context, args))
}

Cost weighted_swiglu_forward_cost(const WeightedSwigluForward& args) {
  const int64_t elems = args.max_rows * args.width;
  return {22 * elems, bytes_of(3 * elems, args.dtype) + bytes_of(args.max_rows, DType::f32)};
}

Cost weighted_swiglu_backward_cost(const WeightedSwigluBackward& args) {
  const int64_t elems = args.max_rows * args.width;
  return {31 * elems, bytes_of(5 * elems, args.dtype) + bytes_of(2 * args.max_rows, DType::f32)};
}

}  // namespace slipstream::kernels
