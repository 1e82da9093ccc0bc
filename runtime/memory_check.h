// SPDX-License-Identifier: Apache-2.0
#pragma once
// Does the memory of the GPU or of the host hold the ranks of a run, and how much did they take?

#include <string>
#include <vector>

#include "comm/nccl/nccl_table.h"
#include "engine/plan/job.h"
#include "planner/plan_options.h"
#include "runtime/device_assignment.h"

namespace slipstream::runtime {

/// What a job is planned from that runs at `place`, on a machine that all ranks agree on. Pure.
planner::JobRequest request_at(const DeviceAssignment& assignment, const RunConfig& config, const Machine& machine,
                               int world, int rank, int64_t vocab);

/// Blocks. Collective. On CPUs: the plan and `text_bytes` of text must fit the machine file's memory per rank, or, with
/// all ranks of this host, its memory. Throws: AgreedFailure (code 7), with the table.
void require_host_memory(World& world, const RunConfig& config, const Job& job, const Machine& machine,
                         int64_t text_bytes);

/// The peak of this process's resident memory, as the kernel counts it; 0 where it does not report it.
int64_t peak_resident_bytes();

/// Blocks. Collective. What all ranks of one GPU take together must be free on it.
/// Throws: AgreedFailure (code 7), with the table.
void require_gpu_memory(World& world, const DeviceAssignment& assignment, const Job& job, int64_t ranks_per_node);

/// What is taken of the GPU beyond what was in use when `free_at_start` bytes of it were free, beside what the table
/// says: the difference is code that libraries have loaded since, graphs, and what NCCL takes beyond the estimate.
std::string gpu_memory_line(const DeviceAssignment& assignment, const Job& job, int64_t ranks_per_node,
                            int64_t free_at_start);

}  // namespace slipstream::runtime
