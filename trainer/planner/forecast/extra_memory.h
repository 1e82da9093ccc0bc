// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that kernels and libraries take on a GPU in addition to the buffers of the plan.

#include <cstdint>
#include <vector>

#include "comm/nccl/nccl_table.h"
#include "engine/plan/job.h"
#include "engine/plan/memory.h"

namespace slipstream::planner {

/// Returns one entry for each of kernels, cuBLASLt and NCCL (an estimate) that takes memory. Reads NCCL_* from the
/// environment, so that ranks with equal variables get equal results.
std::vector<ExtraMemory> extra_memory_on_gpu(const Job& job, const comm::NcclTable& table, int64_t ranks_per_node);

int64_t sum_of(const std::vector<ExtraMemory>& beside);

}  // namespace slipstream::planner
