// SPDX-License-Identifier: Apache-2.0
#pragma once
// Step times of all ranks brought together: means, and communication counted from when the last rank entered.

#include <vector>

#include "cli/world.h"
#include "engine/report/overlap.h"

namespace slipstream::cli {

/// Means over ranks, in milliseconds; `exposed_ms_max` is of the rank that waited longest.
struct StepMeans {
  double step_ms = 0, compute_ms = 0, comm_ms = 0, exposed_ms = 0, bubble_ms = 0, exposed_ms_max = 0, input_ms = 0, other_ms = 0, skew_ms = 0;
};

/// Blocks. Collective: every rank gives the same steps. `meetings`: see comm::meetings_of. Returns one entry per step, the
/// same on all ranks.
std::vector<StepMeans> mean_over_ranks(World& world, const std::vector<StepTimes>& steps, const std::vector<uint64_t>& meetings);

/// Blocks. Collective: element by element the largest value of any rank.
std::vector<int64_t> largest_over_ranks(World& world, const std::vector<int64_t>& values);

}  // namespace slipstream::cli
