// SPDX-License-Identifier: Apache-2.0
// Checks, cost, dispatch and the table of the rotary position embedding.

#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/check.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {
namespace {

void require_even(std::string_view op, int64_t head_dim) {
  require_at_least(op, "head_dim", head_dim, 2);
  if (head_dim % 2 != 0)
    throw ShapeError("[{}] head_dim is {}, need an even number: rotations act on pairs.", op, head_dim);
}

double scaled(double frequency, const RopeScaling& s) {
  if (s.factor == 0) return frequency;
  const double waves =
      static_cast<double>(s.original_context) * frequency / (2 * std::numbers::pi);  // the waves in a sequence
  const double low = static_cast<double>(s.low_freq_factor), high = static_cast<double>(s.high_freq_factor);
  const double kept = std::clamp((waves - low) / (high - low), 0.0, 1.0);
  return (1 - kept) * frequency / static_cast<double>(s.factor) + kept * frequency;
}

}  // namespace

void rope(LaunchContext& context, const Rope& args) {
  constexpr std::string_view op = "rope";
  require_activation_dtype(op, args.dtype);
  require_even(op, args.head_dim);
  require_at_least(op, "batch", args.batch, 0);
  require_at_least(op, "tokens", args.tokens, 0);
  require_at_least(op, "heads", args.heads, 0);
  require_at_least(op, "row_stride", args.row_stride, args.heads * args.head_dim);
  require_at_least(op, "position_offset", args.position_offset, 0);
  if (args.batch * args.tokens * args.heads == 0) return;
  require_pointers(op, {args.x, args.table});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return rope_cuda(context, args);
  SLIP_CALL_ISA(rope_cpu(context, args));
}

Cost rope_cost(const Rope& args) {
  const int64_t elems = args.batch * args.tokens * args.heads * args.head_dim;
  return {3 * elems, bytes_of(2 * elems, args.dtype) + 4 * args.tokens * args.head_dim};
}

void rope_table(float* table, int64_t positions, int64_t head_dim, float theta, const RopeScaling& scaling) {
  require_even("rope_table", head_dim);
  if (scaling.factor != 0 && !(scaling.low_freq_factor < scaling.high_freq_factor))
    throw ShapeError("[rope_table] low_freq_factor is {}, need less than high_freq_factor {}.", scaling.low_freq_factor,
                     scaling.high_freq_factor);
  const int64_t half = head_dim / 2;
  for (int64_t j = 0; j < half; ++j) {
    const double frequency = scaled(
        std::pow(static_cast<double>(theta), -2.0 * static_cast<double>(j) / static_cast<double>(head_dim)), scaling);
    for (int64_t p = 0; p < positions; ++p) {
      table[p * head_dim + j] = static_cast<float>(std::cos(static_cast<double>(p) * frequency));
      table[p * head_dim + half + j] = static_cast<float>(std::sin(static_cast<double>(p) * frequency));
    }
  }
}

}  // namespace slipstream::kernels
