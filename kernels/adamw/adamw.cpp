// SPDX-License-Identifier: Apache-2.0
// Checks, cost and dispatch of AdamW.

#include "kernels/adamw/adamw.h"

#include "kernels/adamw/adamw_cpu.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {

void adamw(LaunchContext& context, const Adamw& args) {
  if (context.kind != DeviceKind::cpu) no_kernel("adamw", context.kind);
  require_at_least("adamw", "elems", args.elems, 0);
  if (args.elems == 0) return;
  require_pointers("adamw", {args.parameters, args.m, args.v, args.gradient, args.scalars});
  SLIP_CALL_ISA(adamw_cpu(context, args))
}

Cost adamw_cost(const Adamw& args) {
  return {16 * args.elems, (args.working ? 30 : 28) * args.elems};
}

}  // namespace slipstream::kernels
