// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks that the memory of a GPU or host holds the ranks of a run, and reports their use.

#include <string>
#include <vector>

#include "comm/nccl/nccl_table.h"
#include "engine/plan/job.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/runtime/rank/device_assignment.h"

namespace slipstream::runtime {

/// Returns the inputs of the plan for `rank` of a run at `assignment`, on the machine common to all ranks. Pure.
planner::JobRequest request_at(const DeviceAssignment& assignment, const ResolvedConfig& config, const Machine& machine,
                               int rank);

/// Blocks. Collective. Checks CPUs: the plan and `data_bytes` for the data must fit the machine file's memory per rank,
/// or, with all ranks of this host, the host's memory. Throws: AgreedFailure (code 7) with the table.
void require_host_memory(World& world, const RunConfig& config, const Job& job, const Machine& machine,
                         int64_t data_bytes);

/// Returns the peak of this process's resident memory as the kernel reports it; 0 if it is unknown.
int64_t peak_resident_bytes();

/// Blocks. Collective. Checks that the sum over all ranks of one GPU is free on it, and that the snapshots of all ranks
/// of a host fit into its memory.
/// Throws: AgreedFailure (code 7) with the table.
void require_gpu_memory(World& world, const DeviceAssignment& assignment, const Job& job, int64_t ranks_per_node);

/// Returns a line about the GPU memory taken since `free_at_start` bytes were free, and the memory in the table. The
/// difference is code loaded by libraries, graphs, and NCCL memory beyond the estimate.
std::string gpu_memory_line(const DeviceAssignment& assignment, const Job& job, int64_t ranks_per_node,
                            int64_t free_at_start);

}  // namespace slipstream::runtime
