// SPDX-License-Identifier: Apache-2.0
// Checks, cost and dispatch of the sum of squares.

#include "kernels/sum_squares/sum_squares.h"

#include "kernels/common/require.h"
#include "kernels/sum_squares/sum_squares_cpu.h"

namespace slipstream::kernels {

void sum_squares(LaunchContext& context, const SumSquares& args) {
  require_cpu(context, "sum_squares");
  require_sizes("sum_squares", {args.elems});
  require_operands("sum_squares", {args.result});
  if (args.elems > 0) require_operands("sum_squares", {args.x});
  SLIP_CALL_ISA(sum_squares_cpu(context, args))
}

Cost sum_squares_cost(const SumSquares& args) { return {2 * args.elems, 4 * args.elems + 8}; }

}  // namespace slipstream::kernels
