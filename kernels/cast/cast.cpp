// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of conversions and sums.

#include "kernels/cast/cast.h"

#include "kernels/cast/cast_cpu.h"
#include "kernels/common/require.h"

namespace slipstream::kernels {

void cast(LaunchContext& context, const Cast& args) {
  require_cpu(context, "cast");
  require_sizes("cast", {args.elems});
  require_float("cast", args.from_dtype);
  require_float("cast", args.to_dtype);
  if (args.elems == 0) return;
  require_operands("cast", {args.from, args.to});
  SLIP_CALL_ISA(cast_cpu(context, args))
}

void add(LaunchContext& context, const Add& args) {
  require_cpu(context, "add");
  require_sizes("add", {args.elems});
  if (args.elems == 0) return;
  require_operands("add", {args.x, args.y});
  SLIP_CALL_ISA(add_cpu(context, args))
}

Cost cast_cost(const Cast& args) {
  return {args.from_dtype == args.to_dtype ? 0 : args.elems,
          bytes_of(args.elems, args.from_dtype) + bytes_of(args.elems, args.to_dtype)};
}

Cost add_cost(const Add& args) { return {args.elems, 12 * args.elems}; }

}  // namespace slipstream::kernels
