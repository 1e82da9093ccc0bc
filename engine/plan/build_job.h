// SPDX-License-Identifier: Apache-2.0
#pragma once
// The planner: makes a job from a model and its buffers.

#include "engine/plan/job.h"

namespace slipstream {

/// Pure. Places memory and runs the passes. The passes of training are: spine, sub-layer communication, transfers
/// between stages, reduction, residency, tied copies, norm and optimizer, report and input. Evaluation and the plan
/// before the first step follow. comm::finish() must still order the plans.
/// Throws: PlanError, ConfigError.
Job build_job(ModelSpec model, Buffers buffers, const PlanOptions& options);

/// Appends the plans with which double_buffer trains after an odd number of steps. They have the items, the order and
/// the waits of the finished plans, and exchange the two copies of the weights. Must be called after comm::finish(). A
/// second call replaces these plans.
void swap_buffers(Job& job);

}  // namespace slipstream
