// SPDX-License-Identifier: Apache-2.0
// Checks, cost, keys and dispatch of dropout.

#include "kernels/dropout/dropout.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "kernels/common/checks.h"
#include "kernels/dropout/dropout_cuda.h"

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

uint64_t dropout_key(uint64_t seed, std::string_view name) { return Philox(seed, name).bits(0); }

uint32_t dropout_threshold(double rate) {
  return static_cast<uint32_t>(std::min(std::nearbyint(rate * 0x1p32), 0x1p32 - 1));
}

float dropout_scale(double rate) { return static_cast<float>(1 / (1 - rate)); }

}  // namespace slipstream::kernels
