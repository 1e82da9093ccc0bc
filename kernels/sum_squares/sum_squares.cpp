// SPDX-License-Identifier: Apache-2.0
// Checks, cost and dispatch of the sums of squares.

#include "kernels/sum_squares/sum_squares.h"

#include "kernels/common/checks.h"

namespace slipstream::kernels {

void sum_squares(LaunchContext& context, const SumSquares& args) {
  if (context.kind == DeviceKind::sim) no_kernel("sum_squares", context.kind);
  require_at_least("sum_squares", "part_count", args.part_count, 0);
  if (args.part_count == 0) return;
  require_pointers("sum_squares", {args.parts, args.results});
  for (int64_t i = 0; i < args.part_count; ++i) {
    require_at_least("sum_squares", "begin", args.parts[i].begin, 0);
    require_at_least("sum_squares", "elems", args.parts[i].elems, 0);
    require_at_least("sum_squares", "result", args.parts[i].result, 0);
    if (args.parts[i].elems > 0) require_pointers("sum_squares", {args.x});
  }
  if (context.kind == DeviceKind::cuda) return sum_squares_cuda(context, args);
  SLIP_CALL_ISA(sum_squares_cpu(context, args))
}

Cost sum_squares_cost(const SumSquares& args) {
  Cost cost;
  for (int64_t i = 0; i < args.part_count; ++i) {
    cost.flops += 2 * args.parts[i].elems;
    cost.bytes += 4 * args.parts[i].elems + 8;
  }
  return cost;
}

}  // namespace slipstream::kernels
