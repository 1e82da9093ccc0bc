// SPDX-License-Identifier: Apache-2.0
#pragma once
// The planner: from a model and its buffers to a job.

#include "engine/plan/job.h"

namespace slipstream {

/// Pure. Places memory and runs the passes. Training: spine -> sub-layer -> transfers between stages -> reduction ->
/// residency -> tied copies -> norm and optimizer -> report and input; then evaluation, and the plan before the first
/// step. The plans still need comm::finish() for their order.
/// Throws: PlanError, ConfigError.
Job build_job(ModelSpec model, Buffers buffers, const PlanOptions& options);

/// With double_buffer: appends the plans that run after an odd number of steps: the items, order and waits of the
/// finished plans, with the two copies of the weights exchanged. Call after comm::finish(). A second call makes them
/// anew.
void swap_buffers(Job& job);

}  // namespace slipstream
