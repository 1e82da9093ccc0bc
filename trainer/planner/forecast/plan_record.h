// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes plan.json of a run folder: the plan with its predicted times, for comparison with what the run measures.

#include <string>

#include "engine/config/machine.h"
#include "trainer/planner/finished_job.h"

namespace slipstream::planner {

/// One JSON object: rates of the machine, coordinates of the ranks, and for every pipeline stage its memory, channels
/// and items with their times in the second of three rehearsed steps. A plan of more than kMostRecordedItems items, or
/// of more ranks than kMostRecordedRanks, is recorded without them. Pure.
std::string plan_record(const RunConfig& config, const Machine& machine, const FinishedJob& finished);

constexpr int64_t kMostRecordedItems = 100'000;
constexpr int kMostRecordedRanks = 4096;

}  // namespace slipstream::planner
