// SPDX-License-Identifier: Apache-2.0
#pragma once
// Synthetic stages of equal duration, and their theoretical bubble.

#include <cstdint>
#include <vector>

#include "trainer/planner/planner.h"

namespace slipstream::bench {

/// Returns the nanoseconds of every spine item of the training plan of a stage, such that a forward pass takes
/// `forward_ns`, a backward pass twice that, and each half of a split backward pass as long as a forward pass. A chunk
/// takes its share, and updates take no time. Pure.
std::vector<int64_t> equal_stage_ns(const Job& job, int64_t forward_ns);

/// The mean duration of one micro-batch's passes on this stage, summed over its chunks. `weight` is 0 if the backward
/// pass is not split.
struct PassMs {
  double forward = 0, backward = 0, weight = 0;
};
/// Returns these durations from the times of all spine items of the training plan. Pure.
PassMs pass_ms(const Job& job, const std::vector<int64_t>& spine_ns);

/// Returns the idle share of a stage's compute: (p-1)/m; with v virtual stages (p-1)/(v m); with a split backward pass
/// a third of (p-1)/m. Pure.
double closed_form_bubble(const PipelineSchedule& schedule);

/// Returns the compute time of one stage in a step. Pure.
int64_t busy_ns(const PipelineSchedule& schedule, int64_t forward_ns);

/// Returns the step in virtual time with spine items of spine_ns[s] on stage s and hops of `transfer_ns`. The result is
/// negative if the rehearsal deadlocks. Pure.
double rehearsed_stages_ms(const std::vector<std::shared_ptr<const Job>>& stages,
                           const std::vector<std::vector<int64_t>>& spine_ns, int64_t transfer_ns);

/// Returns the bound of the schedule alone: every use begins when its stage is free and its input is ready, hops take
/// no time, and the smallest remaining work of any stage (updates) follows. With equal stages, it equals their compute
/// plus the closed form of their bubble. Pure.
double ideal_step_ms(const std::vector<std::shared_ptr<const Job>>& stages,
                     const std::vector<std::vector<int64_t>>& spine_ns);

}  // namespace slipstream::bench
