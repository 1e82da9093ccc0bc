// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of the products of all experts.

#include "kernels/experts/grouped.h"

#include "kernels/common/checks.h"

namespace slipstream::kernels {
namespace {

template <typename Args>
void require_shape(std::string_view op, const Args& args) {
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "max_rows", args.max_rows, 0);
  require_at_least(op, "experts", args.experts, 1);
  require_at_least(op, "in", args.in, 1);
  require_at_least(op, "out", args.out, 1);
}

/// A product with results [rows, cols] and sums over `depth`, of which each row of the larger operand has one expert.
Cost product(int64_t flops, int64_t bytes, int64_t rows, int64_t cols, int64_t depth) {
  return {flops,
          bytes,
          {{.kind = KernelKind::product, .flops = flops, .bytes = bytes, .rows = rows, .cols = cols, .depth = depth}}};
}

template <typename Args>
int64_t flops_of(const Args& args) {
  return 2 * args.max_rows * args.in * args.out;
}

template <typename Args>
int64_t bytes_with_weights(const Args& args) {
  return bytes_of(args.max_rows * (args.in + args.out) + args.experts * args.in * args.out, args.dtype) +
         bytes_of(args.experts + 1, DType::i32);
}

}  // namespace

void grouped_forward(LaunchContext& context, const GroupedForward& args) {
  constexpr std::string_view op = "grouped_forward";
  require_shape(op, args);
  if (args.max_rows == 0) return;
  require_pointers(op, {args.x, args.weight, args.y, args.offsets});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return grouped_forward_cuda(context, args);
  SLIP_CALL_ISA(grouped_forward_cpu(context, args))
}

void grouped_backward_input(LaunchContext& context, const GroupedBackwardInput& args) {
  constexpr std::string_view op = "grouped_backward_input";
  require_shape(op, args);
  if (args.max_rows == 0) return;
  require_pointers(op, {args.dy, args.weight, args.dx, args.offsets});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return grouped_backward_input_cuda(context, args);
  SLIP_CALL_ISA(grouped_backward_input_cpu(context, args))
}

void grouped_backward_weight(LaunchContext& context, const GroupedBackwardWeight& args) {
  constexpr std::string_view op = "grouped_backward_weight";
  require_shape(op, args);
  if (args.max_rows == 0 && args.accumulate) return;
  require_pointers(op, {args.dweight, args.offsets});
  if (args.max_rows > 0) require_pointers(op, {args.x, args.dy});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return grouped_backward_weight_cuda(context, args);
  SLIP_CALL_ISA(grouped_backward_weight_cpu(context, args))
}

Cost grouped_forward_cost(const GroupedForward& args) {
  return product(flops_of(args), bytes_with_weights(args), args.max_rows, args.out, args.in);
}

Cost grouped_backward_input_cost(const GroupedBackwardInput& args) {
  return product(flops_of(args), bytes_with_weights(args), args.max_rows, args.in, args.out);
}

Cost grouped_backward_weight_cost(const GroupedBackwardWeight& args) {
  const int64_t results = args.experts * args.in * args.out * (args.accumulate ? 2 : 1);
  return product(flops_of(args),
                 bytes_of(args.max_rows * (args.in + args.out), args.dtype) + bytes_of(results, DType::f32) +
                     bytes_of(args.experts + 1, DType::i32),
                 args.experts * args.out, args.in, (args.max_rows + args.experts - 1) / args.experts);
}

}  // namespace slipstream::kernels
