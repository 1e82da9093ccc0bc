// SPDX-License-Identifier: Apache-2.0
// Checks, cost and dispatch of the residual sum.

#include "kernels/residual/residual.h"

#include "kernels/common/checks.h"

namespace slipstream::kernels {

void residual(LaunchContext& context, const Residual& args) {
  constexpr std::string_view op = "residual";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "elems", args.elems, 0);
  if (args.elems == 0) return;
  require_pointers(op, {args.a, args.b, args.y});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return residual_cuda(context, args);
  SLIP_CALL_ISA(residual_cpu(context, args));
}

Cost residual_cost(const Residual& args) { return {args.elems, bytes_of(3 * args.elems, args.dtype)}; }

}  // namespace slipstream::kernels
