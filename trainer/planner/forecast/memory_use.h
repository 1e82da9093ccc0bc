// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes of each owner that hold a value during a step of the training plan.

#include <array>
#include <cstdint>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream::planner {

/// By position in Plan::order, by owner: bytes whose next access in this or the next step is a read. Bytes that the
/// step only overwrites hold no value before that, and memory that nothing of the step touches (weights of evaluations,
/// staged snapshots) counts as in use. So no entry exceeds Buffers::bytes(). Pure.
std::vector<std::array<int64_t, kOwners>> memory_in_use(const Job& job);

}  // namespace slipstream::planner
