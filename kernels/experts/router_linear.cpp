// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of the router's product.

#include "kernels/experts/router_linear.h"

#include "kernels/common/checks.h"

namespace slipstream::kernels {
namespace {

template <typename Args>
void require_shape(std::string_view op, const Args& args) {
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "tokens", args.tokens, 0);
  require_at_least(op, "width", args.width, 1);
  require_at_least(op, "experts", args.experts, 1);
}

Cost product(int64_t rows, int64_t cols, int64_t depth, int64_t bytes) {
  const int64_t flops = 2 * rows * cols * depth;
  return {flops,
          bytes,
          {{.kind = KernelKind::product, .flops = flops, .bytes = bytes, .rows = rows, .cols = cols, .depth = depth}}};
}

}  // namespace

void router_linear(LaunchContext& context, const RouterLinear& args) {
  constexpr std::string_view op = "router_linear";
  require_shape(op, args);
  if (args.tokens == 0) return;
  require_pointers(op, {args.x, args.weight, args.logits});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return router_linear_cuda(context, args);
  SLIP_CALL_ISA(router_linear_cpu(context, args))
}

void router_linear_backward_input(LaunchContext& context, const RouterLinearBackwardInput& args) {
  constexpr std::string_view op = "router_linear_backward_input";
  require_shape(op, args);
  if (args.tokens == 0) return;
  require_pointers(op, {args.dlogits, args.weight, args.dx});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return router_linear_backward_input_cuda(context, args);
  SLIP_CALL_ISA(router_linear_backward_input_cpu(context, args))
}

void router_linear_backward_weight(LaunchContext& context, const RouterLinearBackwardWeight& args) {
  constexpr std::string_view op = "router_linear_backward_weight";
  require_shape(op, args);
  if (args.tokens == 0 && args.accumulate) return;
  require_pointers(op, {args.dweight});
  if (args.tokens > 0) require_pointers(op, {args.dlogits, args.x});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return router_linear_backward_weight_cuda(context, args);
  SLIP_CALL_ISA(router_linear_backward_weight_cpu(context, args))
}

Cost router_linear_cost(const RouterLinear& args) {
  return product(args.tokens, args.experts, args.width,
                 bytes_of((args.tokens + args.experts) * args.width, args.dtype) +
                     bytes_of(args.tokens * args.experts, DType::f32));
}

Cost router_linear_backward_input_cost(const RouterLinearBackwardInput& args) {
  return product(args.tokens, args.width, args.experts,
                 bytes_of(args.tokens * args.experts, DType::f32) +
                     bytes_of((args.experts + args.tokens * (args.accumulate ? 2 : 1)) * args.width, args.dtype));
}

Cost router_linear_backward_weight_cost(const RouterLinearBackwardWeight& args) {
  return product(
      args.experts, args.width, args.tokens,
      bytes_of(args.tokens * args.experts + args.experts * args.width * (args.accumulate ? 2 : 1), DType::f32) +
          bytes_of(args.tokens * args.width, args.dtype));
}

}  // namespace slipstream::kernels
