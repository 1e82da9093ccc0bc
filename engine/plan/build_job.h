// SPDX-License-Identifier: Apache-2.0
#pragma once
// The planner: from a model and its buffers to a job.

#include "engine/plan/job.h"

namespace slipstream {

/// Places memory and runs the passes. Training: spine -> sub-layer -> hops between stages -> reduction -> residency ->
/// tied copies -> norm and optimizer -> report and input; then evaluation, and what comes before the first step. The
/// plans still need comm::finish() for their order. Pure.
/// Throws: PlanError, ConfigError.
Job build_job(ModelSpec model, Buffers buffers, const PlanOptions& options);

/// With double_buffer: makes of the finished plans of `job` those of every other step. The same items in the same order
/// with the same waits, the two copies of the weights in exchanged places. Call after comm::finish().
void swap_buffers(Job& job);

}  // namespace slipstream
