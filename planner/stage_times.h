// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the passes of a micro-batch take on every stage of a pipeline, for those who choose its schedule.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/rehearse/price.h"
#include "engine/plan/job.h"

namespace slipstream::planner {

/// Means over the micro-batches of a step. `told` says what spine items of training take, as JobRequest::spine_ns does;
/// negative, not said or empty: what `price` says of their works. `transfer_ns` between stages. For stages of one
/// chunk. Pure.
PlayTimes pass_times(const std::vector<std::shared_ptr<Job>>& stages,
                     const std::function<std::vector<int64_t>(const Job&)>& measured_ns,
                     const comm::RooflinePrice& price, int64_t transfer_ns);

}  // namespace slipstream::planner
