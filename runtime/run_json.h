// SPDX-License-Identifier: Apache-2.0
#pragma once
// run.json: versions, host, layout, plan hash, and the choices of libraries.

#include <string>

#include "engine/base/json.h"
#include "engine/config/config.h"
#include "engine/config/machine.h"
#include "planner/finished_job.h"
#include "runtime/device_assignment.h"
#include "runtime/rank.h"
#include "runtime/world.h"

namespace slipstream::runtime {

/// The cost of an old driver: NCCL's operations of different channels do not overlap each other in replayed steps, or
/// in any step. Empty: none. Pure.
std::string driver_note(const RunConfig& config, const planner::FinishedJob& finished);

/// The content of run.json before the first step.
Json run_json(const World& world, const DeviceAssignment& assignment, const RunConfig& config,
              const planner::FinishedJob& finished, const Machine& machine, int threads);

/// `run` with the choices of the GPU's libraries: functions of the tables, the libraries and the card.
Json with_choices(Json run, const DeviceAssignment& assignment, const Rank& rank);

}  // namespace slipstream::runtime
