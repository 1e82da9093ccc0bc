// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks that the memory of GPU or host holds the ranks of a run, and reports their use.

#include <string>
#include <vector>

#include "comm/nccl/nccl_table.h"
#include "engine/plan/job.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/runtime/rank/device_assignment.h"

namespace slipstream::runtime {

/// The inputs of the plan for `rank` of a run at `assignment`, on the machine common to all ranks. Pure.
planner::JobRequest request_at(const DeviceAssignment& assignment, const ResolvedConfig& config, const Machine& machine,
                               int rank);

/// Blocks. Collective. On CPUs: the plan and `data_bytes` for the data must fit the machine file's memory per rank, or,
/// with all ranks of this host, its memory. Throws: AgreedFailure (code 7), with the table.
void require_host_memory(World& world, const RunConfig& config, const Job& job, const Machine& machine,
                         int64_t data_bytes);

/// The peak of this process's resident memory as the kernel reports it; 0 if unknown.
int64_t peak_resident_bytes();

/// Blocks. Collective. The sum over all ranks of one GPU must be free on it, and the snapshots of all ranks of a host
/// must fit its memory.
/// Throws: AgreedFailure (code 7), with the table.
void require_gpu_memory(World& world, const DeviceAssignment& assignment, const Job& job, int64_t ranks_per_node);

/// Prints the GPU memory taken since `free_at_start` bytes were free, and the memory in the table. The difference is
/// code loaded by libraries, graphs, and NCCL memory beyond the estimate.
std::string gpu_memory_line(const DeviceAssignment& assignment, const Job& job, int64_t ranks_per_node,
                            int64_t free_at_start);

}  // namespace slipstream::runtime
