// SPDX-License-Identifier: Apache-2.0
// Checks, cost and dispatch of AdamW.

#include "kernels/adamw/adamw.h"

#include "engine/base/check.h"
#include "kernels/adamw/adamw_cpu.h"
#include "kernels/adamw/adamw_cuda.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {

void adamw(LaunchContext& context, const Adamw& args) {
  if (context.kind == DeviceKind::sim) no_kernel("adamw", context.kind);
  require_at_least("adamw", "elems", args.elems, 0);
  if (args.elems == 0) return;
  require_pointers("adamw", {args.parameters, args.m, args.v, args.gradient, args.scalars});
  if (args.decay_edge_count > 0) require_pointers("adamw", {args.decay_edges});
  for (int64_t i = 0, least = 0; i < args.decay_edge_count; least = args.decay_edges[i++])
    if (args.decay_edges[i] < least || args.decay_edges[i] > args.elems)
      throw ShapeError(
          "[adamw] edge {} of the weight decay is at element {}: need {} to {}. Pass edges in ascending order.", i,
          args.decay_edges[i], least, args.elems);
  if (context.kind == DeviceKind::cuda) return adamw_cuda(context, args);
  SLIP_CALL_ISA(adamw_cpu(context, args))
}

Cost adamw_cost(const Adamw& args) { return {16 * args.elems, (args.working ? 30 : 28) * args.elems}; }

}  // namespace slipstream::kernels
