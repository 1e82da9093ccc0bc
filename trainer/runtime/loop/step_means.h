// SPDX-License-Identifier: Apache-2.0
#pragma once
// Step times of all ranks brought together: waits split into exposed communication and bubbles, and means.

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

/// Means over ranks, in milliseconds; `exposed_ms_max` is of the rank that waited longest, `exposed_by` adds up to
/// `exposed_ms`.
struct StepMeans {
  double step_ms = 0, compute_ms = 0, comm_ms = 0, exposed_ms = 0, bubble_ms = 0, exposed_ms_max = 0, input_ms = 0,
         other_ms = 0, skew_ms = 0, hidden_ms = 0;
  std::map<std::string, double> exposed_by;  // by the name of the task that compute waited for
};

struct GatheredSteps {
  std::vector<StepMeans> means;    // by step, the same on all ranks
  std::vector<OwnSample> samples;  // by step, on rank 0, if the ranks gave their own times
};

/// Blocks. Collective: every rank gives the same steps. `own` has own_times() of each, or nothing on all ranks.
GatheredSteps gather_steps(World& world, const std::vector<StepTimes>& steps, const std::vector<OwnTimes>& own,
                           const PlanItems& items);

/// Pure. The largest first.
std::vector<std::pair<std::string, double>> by_size(const std::map<std::string, double>& ms);

/// Pure. "reduce.3 2.1 ms, reduce.0 0.4 ms, reduce.1 0.1 ms and 2 more": means over `steps`, three tasks at most; empty
/// if compute waited for none.
std::string waited_for(const std::map<std::string, double>& exposed_by, double steps);

/// Blocks. Collective: element by element the largest value of any rank. Every rank gives as many values.
std::vector<int64_t> largest_over_ranks(World& world, const std::vector<int64_t>& values);

/// Blocks. Collective: the same among the ranks of each pipeline stage, by stage. `values` are of this rank's stage:
/// the plans of stages have different items.
std::vector<std::vector<int64_t>> largest_of_stages(World& world, const Mesh& mesh, const std::vector<int64_t>& values);

}  // namespace slipstream::runtime
