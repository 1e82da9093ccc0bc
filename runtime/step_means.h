// SPDX-License-Identifier: Apache-2.0
#pragma once
// Step times of all ranks brought together: waits split into exposed communication and bubbles, and means.

#include <map>
#include <string>
#include <vector>

#include "engine/report/critical_path.h"
#include "runtime/world.h"

namespace slipstream::runtime {

/// The training plans of all ranks, by rank.
struct PlanItems {
  /// Blocks. Collective.
  PlanItems(World& world, const Job& job);
  std::vector<PlanGraph> graphs;
  std::vector<std::vector<std::string>> names;  // by item
};

/// Means over ranks, in milliseconds; `exposed_ms_max` is of the rank that waited longest, `exposed_by` adds up to
/// `exposed_ms`.
struct StepMeans {
  double step_ms = 0, compute_ms = 0, comm_ms = 0, exposed_ms = 0, bubble_ms = 0, exposed_ms_max = 0, input_ms = 0,
         other_ms = 0, skew_ms = 0, hidden_ms = 0;
  std::map<std::string, double> exposed_by;  // by the name of the task that compute waited for
};

/// Blocks. Collective: every rank gives the same steps. Returns one entry per step, the same on all ranks.
std::vector<StepMeans> mean_over_ranks(World& world, const std::vector<StepTimes>& steps, const PlanItems& items);

/// Blocks. Collective: element by element the largest value of any rank.
std::vector<int64_t> largest_over_ranks(World& world, const std::vector<int64_t>& values);

}  // namespace slipstream::runtime
