// SPDX-License-Identifier: Apache-2.0
#pragma once
// The numbers of micro-batches whose plans give the step of many.

#include <cstddef>
#include <cstdint>

#include "engine/config/resolve.h"
#include "trainer/planner/finished_job.h"

namespace slipstream::planner {

/// A few micro-batches of a run. Beyond them, the step is a line: T(planned) + rounds x (T(planned + round) -
/// T(planned)).
struct SteadyState {
  int64_t planned = 0;
  int64_t round = 0;
  double rounds = 0;   // 0: there are too few micro-batches
  bool fills = false;  // the plans have fewer micro-batches than stages
};
/// Deep pipelines are planned with fewer micro-batches than stages. A stage whose next stages are full has their pace,
/// so that a further micro-batch takes the time of the steady state there as well. The first stages do not yet hold all
/// micro-batches that they will hold, see most_bytes_of_run(). Pure.
SteadyState steady_state(const ResolvedConfig& config);
struct StageMemory {
  size_t stage = 0;
  int64_t size_bytes = 0;
};
/// Returns the largest stage with all micro-batches of the run, without memory outside of the plan, from plans with
/// `planned` and `planned + round` micro-batches. Activations grow with the micro-batches that the whole schedule keeps
/// alive. Pure.
StageMemory largest_of_run(const ResolvedConfig& run, const SteadyState& state, const FinishedJob& shorter,
                           const FinishedJob& longer);
/// Returns the same run with another number of micro-batches in a step. Pure.
ResolvedConfig with_micro_batches(const ResolvedConfig& config, int64_t micro_batches);

}  // namespace slipstream::planner
