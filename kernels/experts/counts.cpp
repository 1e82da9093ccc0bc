// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of the counts of rows, and their CPU kernels, which are too small for several threads.

#include "kernels/experts/counts.h"

#include <algorithm>
#include <limits>

#include "engine/base/check.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {
namespace {

template <typename Args>
void check_table(std::string_view op, const Args& args) {
  require_at_least(op, "ranks", args.ranks, 1);
  require_at_least(op, "experts", args.experts, 1);
  require_at_least(op, "rank", args.rank, 0);
  require_at_least(op, "bound", args.bound, 0);
  if (args.rank >= args.ranks) throw ShapeError("[{}] rank {} is not below {} ranks.", op, args.rank, args.ranks);
  if (args.bound > std::numeric_limits<int32_t>::max())
    throw ShapeError("[{}] bound {} is above 2^31 - 1.", op, args.bound);
}

}  // namespace

void count_rows(LaunchContext& context, const CountRows& args) {
  constexpr std::string_view op = "count_rows";
  require_at_least(op, "experts", args.experts, 1);
  require_pointers(op, {args.offsets, args.counts});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  context.kind == DeviceKind::cuda ? count_rows_cuda(context, args) : count_rows_cpu(args);
}

void own_rows(LaunchContext& context, const OwnRows& args) {
  constexpr std::string_view op = "own_rows";
  check_table(op, args);
  require_at_least(op, "begin", args.begin, 0);
  require_pointers(op, {args.counts, args.offsets});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  context.kind == DeviceKind::cuda ? own_rows_cuda(context, args) : own_rows_cpu(args);
}

void late_rows(LaunchContext& context, const LateRows& args) {
  constexpr std::string_view op = "late_rows";
  check_table(op, args);
  require_pointers(op, {args.counts, args.late});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  context.kind == DeviceKind::cuda ? late_rows_cuda(context, args) : late_rows_cpu(args);
}

Cost count_rows_cost(const CountRows& args) { return {0, 8 * args.experts}; }
Cost own_rows_cost(const OwnRows& args) { return {0, 4 * (args.ranks * args.experts + args.experts + 1)}; }
Cost late_rows_cost(const LateRows& args) { return {0, 4 * (args.ranks * args.ranks * args.experts + 1)}; }

void count_rows_cpu(const CountRows& args) {
  for (int64_t e = 0; e < args.experts; ++e) args.counts[e] = args.offsets[e + 1] - args.offsets[e];
}

void own_rows_cpu(const OwnRows& args) {
  int64_t sum = 0;
  for (int64_t j = 0; j <= args.experts; ++j) {
    args.offsets[j] = static_cast<int32_t>(std::clamp<int64_t>(sum - args.begin, 0, args.bound));
    for (int64_t s = 0; s < args.ranks && j < args.experts; ++s)
      sum += std::max(0, args.counts[(s * args.ranks + args.rank) * args.experts + j]);
  }
}

void late_rows_cpu(const LateRows& args) {
  int64_t rows = 0;
  bool late = false;
  for (int64_t owner = 0; owner < args.ranks; ++owner) {
    int64_t at = 0;  // of the owner's rows
    for (int64_t e = owner * args.experts; e < (owner + 1) * args.experts; ++e)
      for (int64_t s = 0; s < args.ranks; ++s) {
        const int64_t count = std::max(0, args.counts[s * args.ranks * args.experts + e]);
        at += count;
        if (s != args.rank) continue;
        rows += count;
        late = late || (count > 0 && at > args.bound);
      }
  }
  *args.late = late ? static_cast<int32_t>(rows) : 0;
}

}  // namespace slipstream::kernels
