// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of conversions and sums.

#include "kernels/cast/cast.h"

#include "kernels/common/checks.h"

namespace slipstream::kernels {

void cast(LaunchContext& context, const Cast& args) {
  if (context.kind == DeviceKind::sim) no_kernel("cast", context.kind);
  require_at_least("cast", "elems", args.elems, 0);
  require_activation_dtype("cast", args.from_dtype);
  require_activation_dtype("cast", args.to_dtype);
  if (args.elems == 0) return;
  require_pointers("cast", {args.from, args.to});
  if (context.kind == DeviceKind::cuda) return cast_cuda(context, args);
  SLIP_CALL_ISA(cast_cpu(context, args))
}

void add(LaunchContext& context, const Add& args) {
  if (context.kind == DeviceKind::sim) no_kernel("add", context.kind);
  require_at_least("add", "elems", args.elems, 0);
  if (args.elems == 0) return;
  require_pointers("add", {args.x, args.y});
  if (context.kind == DeviceKind::cuda) return add_cuda(context, args);
  SLIP_CALL_ISA(add_cpu(context, args))
}

Cost cast_cost(const Cast& args) {
  return {args.from_dtype == args.to_dtype ? 0 : args.elems,
          bytes_of(args.elems, args.from_dtype) + bytes_of(args.elems, args.to_dtype)};
}

Cost add_cost(const Add& args) { return {args.elems, 12 * args.elems}; }

}  // namespace slipstream::kernels
