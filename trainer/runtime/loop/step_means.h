// SPDX-License-Identifier: Apache-2.0
#pragma once
// Combines the step times of all ranks: splits waits into exposed communication and bubbles, and computes means.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/report/critical_path.h"
#include "engine/report/own_time.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

/// The plans in the steps of all ranks, by rank.
struct PlanItems {
  /// Blocks. Collective.
  PlanItems(World& world, const Job& job);
  std::vector<PlanGraph> graphs;
  std::vector<std::vector<std::string>> names;  // by item of a timeline
  OwnKinds kinds;
  std::vector<std::string> hosts;
};

/// Means over ranks, in milliseconds. `exposed_ms_max` belongs to the rank that waited longest. `exposed_by` adds up to
/// `exposed_ms`.
struct StepMeans {
  double step_ms = 0, compute_ms = 0, comm_ms = 0, exposed_ms = 0, bubble_ms = 0, exposed_ms_max = 0, input_ms = 0,
         other_ms = 0, skew_ms = 0, hidden_ms = 0;
  std::map<std::string, double> exposed_by;  // by the name of the task that compute waited for
};

struct GatheredSteps {
  std::vector<StepMeans> means;    // by step, the same on all ranks
  std::vector<OwnSample> samples;  // by step, on rank 0, if the ranks passed their own times
};

/// Blocks. Collective: every rank passes the same steps. `own` has own_times() of each step, or nothing on all ranks.
GatheredSteps gather_steps(World& world, const std::vector<StepTimes>& steps, const std::vector<OwnTimes>& own,
                           const PlanItems& items);

/// Pure. Returns the entries, the largest first.
std::vector<std::pair<std::string, double>> by_size(const std::map<std::string, double>& ms);

/// Pure. Returns "reduce.3 2.1 ms, reduce.0 0.4 ms, reduce.1 0.1 ms and 2 more": means over `steps`, three tasks at
/// most; empty if compute waited for none.
std::string waited_for(const std::map<std::string, double>& exposed_by, double steps);

/// Blocks. Collective: returns, element by element, the largest value of any rank. Every rank passes the same number of
/// values.
std::vector<int64_t> largest_over_ranks(World& world, const std::vector<int64_t>& values);

/// Blocks. Collective: does the same among the ranks of each pipeline stage and returns the values by stage. `values`
/// belong to this rank's stage, because the plans of stages have different items.
std::vector<std::vector<int64_t>> largest_of_stages(World& world, const Mesh& mesh, const std::vector<int64_t>& values);

}  // namespace slipstream::runtime
