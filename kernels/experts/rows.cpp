// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of the rows in the order of their experts.

#include "kernels/experts/rows.h"

#include <limits>

#include "engine/base/check.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {
namespace {

void require_both(std::string_view op, const float* weights, const float* row_weights) {
  if ((weights == nullptr) != (row_weights == nullptr))
    throw ShapeError("[{}] only {} is null. Pass both weights and row_weights, or neither.", op,
                     weights == nullptr ? "weights" : "row_weights");
}

}  // namespace

void arrange_rows(LaunchContext& context, const ArrangeRows& args) {
  constexpr std::string_view op = "arrange_rows";
  require_at_least(op, "tokens", args.tokens, 0);
  require_at_least(op, "experts", args.experts, 1);
  require_at_least(op, "top_k", args.top_k, 1);
  require_at_least(op, "first", args.first, 0);
  if (args.experts > std::numeric_limits<int32_t>::max() - args.first)
    throw ShapeError("[{}] {} experts from number {} on end after 2^31 - 1.", op, args.experts, args.first);
  if (args.tokens > std::numeric_limits<int32_t>::max() / args.top_k)
    throw ShapeError("[{}] there are {} choices of {} tokens, need fewer than 2^31.", op, args.tokens * args.top_k,
                     args.tokens);
  require_pointers(op, {args.offsets});
  if (args.tokens > 0) require_pointers(op, {args.chosen, args.rows, args.places});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return arrange_rows_cuda(context, args);
  SLIP_CALL_ISA(arrange_rows_cpu(context, args))
}

void take_rows(LaunchContext& context, const TakeRows& args) {
  constexpr std::string_view op = "take_rows";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "max_rows", args.max_rows, 0);
  require_at_least(op, "width", args.width, 1);
  require_at_least(op, "top_k", args.top_k, 1);
  require_both(op, args.weights, args.row_weights);
  if (args.max_rows == 0) return;
  require_pointers(op, {args.from, args.rows, args.to});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return take_rows_cuda(context, args);
  SLIP_CALL_ISA(take_rows_cpu(context, args))
}

void return_rows(LaunchContext& context, const ReturnRows& args) {
  constexpr std::string_view op = "return_rows";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "tokens", args.tokens, 0);
  require_at_least(op, "width", args.width, 1);
  require_at_least(op, "top_k", args.top_k, 1);
  require_at_least(op, "max_rows", args.max_rows, 0);
  require_both(op, args.weights, args.row_weights);
  if (args.tokens == 0) return;
  require_pointers(op, {args.from, args.places, args.to});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return return_rows_cuda(context, args);
  SLIP_CALL_ISA(return_rows_cpu(context, args))
}

Cost arrange_rows_cost(const ArrangeRows& args) {
  return {0, bytes_of(3 * args.tokens * args.top_k + args.experts + 1, DType::i32)};
}

Cost take_rows_cost(const TakeRows& args) {
  return {0, bytes_of(2 * args.max_rows * args.width, args.dtype) +
                 bytes_of((args.weights ? 3 : 1) * args.max_rows, DType::f32)};
}

Cost return_rows_cost(const ReturnRows& args) {
  const int64_t choices = args.tokens * args.top_k, rows = args.max_rows > 0 ? args.max_rows : choices;
  return {rows * args.width, bytes_of((rows + (args.add ? 2 : 1) * args.tokens) * args.width, args.dtype) +
                                 bytes_of(choices + (args.weights ? rows + choices : 0), DType::f32)};
}

}  // namespace slipstream::kernels
