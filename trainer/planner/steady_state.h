// SPDX-License-Identifier: Apache-2.0
#pragma once
// The numbers of micro-batches whose plans give the step of many.

#include <cstddef>
#include <cstdint>

#include "engine/config/resolve.h"
#include "trainer/planner/finished_job.h"

namespace slipstream::planner {

/// Few micro-batches of a run whose step is a line beyond them: T(planned) + rounds x (T(planned + round) -
/// T(planned)).
struct SteadyState {
  int64_t planned = 0;
  int64_t round = 0;
  double rounds = 0;   // 0: too few micro-batches
  bool fills = false;  // the plans have fewer micro-batches than stages
};
/// Deep pipelines are planned with fewer micro-batches than stages: a stage whose next ones are full is paced by them,
/// so a further micro-batch takes the time of the steady state there as well. The first stages do not yet hold all
/// micro-batches that they will, see most_bytes_of_run(). Pure.
SteadyState steady_state(const ResolvedConfig& config);
struct StageMemory {
  size_t stage = 0;
  int64_t size_bytes = 0;
};
/// The largest stage with all micro-batches of the run, without memory outside the plan, from plans with `planned` and
/// `planned + round`: activations grow with the micro-batches that the whole schedule keeps alive. Pure.
StageMemory largest_of_run(const ResolvedConfig& run, const SteadyState& state, const FinishedJob& shorter,
                           const FinishedJob& longer);
/// The same run with another number of micro-batches in a step. Pure.
ResolvedConfig with_micro_batches(const ResolvedConfig& config, int64_t micro_batches);

}  // namespace slipstream::planner
