// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank takes of its GPU: the plan's buffers, and what kernels and libraries take beside them.

#include <string>
#include <vector>

#include "cli/place.h"
#include "cli/plan_options.h"
#include "comm/nccl/nccl_table.h"
#include "engine/plan/job.h"

namespace slipstream::cli {

/// Of kernels, cuBLASLt and NCCL (an estimate), one entry for each that takes something. Reads NCCL_* of the
/// environment: the same on all ranks that agree about those.
std::vector<Beside> beside_plan_on_gpu(const Job& job, const comm::NcclTable& table, int64_t ranks_per_node);

int64_t sum_of(const std::vector<Beside>& beside);

/// What a job is planned from that runs at `place`, on a machine that all ranks agree on. Pure.
JobRequest request_at(const Place& place, const RunConfig& config, const Machine& machine, int world, int rank,
                      int64_t vocab);

/// Blocks. Collective. What all ranks of one GPU take together must be free on it.
/// Throws: AgreedFailure (code 7), with the table.
void require_gpu_memory(World& world, const Place& place, const Job& job, int64_t ranks_per_node);

/// What is taken of the GPU beyond what was in use when `free_at_start` bytes of it were free, beside what the table
/// says: the difference is code that libraries have loaded since, graphs, and what NCCL takes beyond the estimate.
std::string gpu_memory_line(const Place& place, const Job& job, int64_t ranks_per_node, int64_t free_at_start);

}  // namespace slipstream::cli
