// SPDX-License-Identifier: Apache-2.0
// Checks, cost and dispatch of AdamW.

#include "kernels/adamw/adamw.h"

#include "engine/base/check.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {

void adamw(LaunchContext& context, const Adamw& args) {
  if (context.kind == DeviceKind::sim) no_kernel("adamw", context.kind);
  require_at_least("adamw", "elems", args.elems, 0);
  if (args.elems == 0) return;
  require_pointers("adamw", {args.parameters, args.m, args.v, args.gradient, args.scalars});
  if (args.span_count > 0) require_pointers("adamw", {args.spans});
  for (int64_t i = 0, least = 0; i < args.span_count; least = args.spans[i++].begin)
    if (args.spans[i].begin < least || args.spans[i].begin > args.elems)
      throw ShapeError("[adamw] span {} begins at element {}: need {} to {}. Pass spans in ascending order.", i,
                       args.spans[i].begin, least, args.elems);
  if (context.kind == DeviceKind::cuda) return adamw_cuda(context, args);
  SLIP_CALL_ISA(adamw_cpu(context, args))
}

Cost adamw_cost(const Adamw& args) { return {16 * args.elems, (args.working ? 30 : 28) * args.elems}; }

}  // namespace slipstream::kernels
