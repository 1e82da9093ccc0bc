// SPDX-License-Identifier: Apache-2.0
// Checks, cost and dispatch of dropout.

#include "kernels/dropout/dropout.h"

#include "engine/base/check.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {

void dropout(LaunchContext& context, const Dropout& args) {
  constexpr std::string_view op = "dropout";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "width", args.width, 0);
  require_at_least(op, "first_row", args.first_row, 0);
  if (!(args.rate >= 0 && args.rate < 1))
    throw ShapeError("[{}] rate is {}, need a number from 0 to below 1.", op, args.rate);
  if (args.rows * args.width == 0) return;
  require_at_least(op, "tokens of a sequence", args.chunks.local_tokens(), 1);
  require_pointers(op, {args.d, args.y, args.samples});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return dropout_cuda(context, args);
  SLIP_CALL_ISA(dropout_cpu(context, args));
}

Cost dropout_cost(const Dropout& args, bool adds) {
  const int64_t elems = args.rows * args.width;
  return {2 * elems, bytes_of((adds ? 3 : 2) * elems, args.dtype)};
}

}  // namespace slipstream::kernels
