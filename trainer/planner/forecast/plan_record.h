// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes plan.json of a run folder: the plan with its predicted times, to be compared with what the run measures.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/machine.h"
#include "trainer/planner/finished_job.h"

namespace slipstream::planner {

/// Returns one JSON object: the rates of the machine, the coordinates of the ranks, and for every pipeline stage its
/// memory, channels and items with their times in the second of three rehearsed steps. A plan of more than
/// kMostRecordedItems items, or of more ranks than kMostRecordedRanks, is recorded without them. Pure.
std::string plan_record(const RunConfig& config, const Machine& machine, const FinishedJob& finished);

constexpr int64_t kMostRecordedItems = 100'000;
constexpr int kMostRecordedRanks = 4096;

/// Returns, by position in Plan::order and by owner, the bytes whose next access in this or the next step is a read.
/// Bytes that the step only overwrites hold no value before that. Memory that nothing in the step touches (weights of
/// evaluations, staged snapshots) counts as in use. So no entry exceeds Buffers::bytes(). Pure.
std::vector<std::array<int64_t, kOwners>> memory_in_use(const Job& job);

}  // namespace slipstream::planner
