// SPDX-License-Identifier: Apache-2.0
// Checks, cost and dispatch of the sum of squares.

#include "kernels/sum_squares/sum_squares.h"

#include "kernels/common/checks.h"
#include "kernels/sum_squares/sum_squares_cpu.h"

namespace slipstream::kernels {

void sum_squares(LaunchContext& context, const SumSquares& args) {
  if (context.kind != DeviceKind::cpu) no_kernel("sum_squares", context.kind);
  require_at_least("sum_squares", "elems", args.elems, 0);
  require_pointers("sum_squares", {args.result});
  if (args.elems > 0) require_pointers("sum_squares", {args.x});
  SLIP_CALL_ISA(sum_squares_cpu(context, args))
}

Cost sum_squares_cost(const SumSquares& args) {
  return {2 * args.elems, 4 * args.elems + 8};
}

}  // namespace slipstream::kernels
