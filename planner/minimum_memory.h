// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a model needs on a layout at the very least, from its sizes alone, so that hopeless ones are refused before they
// are planned.

#include <cstdint>

#include "engine/config/machine.h"
#include "engine/plan/job.h"
#include "models/model.h"

namespace slipstream::planner {

/// Parameters, gradients and optimizer states of the rank that has most, shared out as `options` say; no plan of them
/// needs less. Extrapolated from models of one and two layers. Pure. Throws: what build_model throws.
int64_t minimum_bytes(const models::ModelOptions& sizes, const PlanOptions& options);

/// Refuses what needs several times the memory of a rank of `machine` whatever its plan, where that memory is known.
/// What misses by less is planned, so that the table of its memory can say where. Throws: ResourceError.
void check_minimum_memory(const models::ModelOptions& sizes, const PlanOptions& options, const Machine& machine);

}  // namespace slipstream::planner
