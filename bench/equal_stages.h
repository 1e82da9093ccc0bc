// SPDX-License-Identifier: Apache-2.0
#pragma once
// Synthetic stages that all take the same time, and the bubble that theory gives them.

#include <cstdint>
#include <vector>

#include "planner/planner.h"

namespace slipstream::bench {

/// Nanoseconds of every spine item of the training plan of a stage, such that a forward pass takes `forward_ns`, a
/// backward pass twice that, and each of its halves, where it is split, as much as a forward pass; a chunk takes its
/// share. Updates take nothing. Pure.
std::vector<int64_t> equal_stage_ns(const Job& job, int64_t forward_ns);

/// What one pass of one micro-batch took on this stage, all chunks together, in the mean over micro-batches; `weight`
/// is 0 where backward is not split.
struct PassMs {
  double forward = 0, backward = 0, weight = 0;
};
/// From the times of all spine items of the training plan. Pure.
PassMs pass_ms(const Job& job, const std::vector<int64_t>& spine_ns);

/// Idle share of a stage's compute: (p-1)/m, with v virtual stages (p-1)/(v m), where a split backward fills it a third
/// of (p-1)/m. Pure.
double closed_form_bubble(const PipelineSchedule& schedule);

/// Compute of one stage in a step. Pure.
int64_t busy_ns(const PipelineSchedule& schedule, int64_t forward_ns);

/// Step in virtual time when the spine items of stage s take spine_ns[s] and hops `transfer_ns`; negative if it
/// deadlocks. Pure.
double rehearsed_stages_ms(const std::vector<std::shared_ptr<const Job>>& stages,
                           const std::vector<std::vector<int64_t>>& spine_ns, int64_t transfer_ns);
double rehearsed_equal_step_ms(const planner::FinishedJob& finished, int64_t forward_ns, int64_t transfer_ns);

/// The schedule alone: every use begins when its stage is free and its input is made, hops take nothing, and behind it
/// the stage that has least besides passes (updates) does that. Of equal stages it is their compute and the closed form
/// of their bubble. Pure.
double ideal_step_ms(const std::vector<std::shared_ptr<const Job>>& stages,
                     const std::vector<std::vector<int64_t>>& spine_ns);

}  // namespace slipstream::bench
