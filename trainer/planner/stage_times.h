// SPDX-License-Identifier: Apache-2.0
#pragma once
// Durations of a micro-batch's passes on every pipeline stage, for the choice of the schedule.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/rehearse/price.h"
#include "engine/plan/job.h"

namespace slipstream::planner {

/// Returns means over the micro-batches of a step, for each chunk. `measured_ns`: durations of training's spine items,
/// as in JobRequest::spine_ns; for pieces with negative or missing entries only, `price` gives the duration of their
/// works. `transfer_ns` between stages. Pure.
PlayTimes pass_times(const std::vector<std::shared_ptr<const Job>>& stages,
                     const std::function<std::vector<int64_t>(const Job&)>& measured_ns,
                     const comm::RooflinePrice& price, int64_t transfer_ns);

}  // namespace slipstream::planner
