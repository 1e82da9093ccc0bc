// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes run.json: versions, host, layout, plan hash, and the choices of libraries.

#include <string>

#include "engine/base/json.h"
#include "engine/config/machine.h"
#include "engine/config/resolve.h"
#include "trainer/planner/finished_job.h"
#include "trainer/runtime/rank/device_assignment.h"
#include "trainer/runtime/rank/rank.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

/// Returns a warning about an old driver, with which NCCL's operations of different channels do not overlap in replayed
/// steps, or in any step. Empty: the driver is not that old. Pure.
std::string driver_note(const RunConfig& config, const planner::FinishedJob& finished);

/// Returns the content of run.json before the first step.
Json run_json(const World& world, const DeviceAssignment& assignment, const ResolvedConfig& resolved,
              const planner::FinishedJob& finished, const Machine& machine, int threads);

/// Returns `run` with the choices of the GPU's libraries, which depend on the tables, the libraries and the GPU.
Json with_choices(Json run, const DeviceAssignment& assignment, const Rank& rank);

}  // namespace slipstream::runtime
