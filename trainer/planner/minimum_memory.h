// SPDX-License-Identifier: Apache-2.0
#pragma once
// The minimum memory of a model on a layout, computed from its sizes alone. Models far beyond the memory are refused
// before planning.

#include <cstdint>

#include "engine/config/machine.h"
#include "engine/plan/job.h"
#include "models/model.h"

namespace slipstream::planner {

/// Returns the bytes of parameters, gradients and optimizer states on the largest rank, sharded by `options`. No plan
/// needs less. The result is extrapolated from models of one and two layers. Pure. Throws: the errors of build_model.
int64_t minimum_bytes(const models::ModelOptions& sizes, const PlanOptions& options);

/// Refuses models whose minimum exceeds a rank's memory on `machine` several times, if that memory is known. A model
/// with a smaller excess is planned, so that the error can print the memory table. Throws: ResourceError.
void check_minimum_memory(const models::ModelOptions& sizes, const PlanOptions& options, const Machine& machine);

}  // namespace slipstream::planner
