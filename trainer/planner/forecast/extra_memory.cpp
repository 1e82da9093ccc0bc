// SPDX-License-Identifier: Apache-2.0
// Counts the streams and communicators of a job as Rank and World make them.

#include "trainer/planner/forecast/extra_memory.h"

#include <algorithm>

#include "comm/nccl/nccl_memory.h"
#include "comm/wiring.h"
#include "kernels/cuda/workspace.h"

namespace slipstream::planner {

std::vector<ExtraMemory> extra_memory_on_gpu(const Job& job, const comm::NcclTable& table, int64_t ranks_per_node) {
  const int64_t streams = std::count_if(job.channels.begin(), job.channels.end(),
                                        [](const Channel& channel) { return channel.runs_kernels(); });
  int64_t nccl_bytes = 0;
  const comm::Wiring wiring = comm::wire_up(job);
  for (size_t i = 0; i < wiring.connections.size(); ++i) {
    const Axis axis = wiring.connections[i];
    if (axis == Axis::hosts || job.mesh.group_size(axis) == 1) continue;
    nccl_bytes += comm::nccl_buffer_bytes(table.of(comm::name_of_connection(job, wiring, i)),
                                          job.mesh.crosses_nodes(axis, ranks_per_node));
  }
  std::vector<ExtraMemory> beside = {{"kernels' scratch", streams * kernels::kScratchBytes},
                                     {"cuBLASLt workspaces", streams * kernels::kWorkspaceBytes}};
  if (nccl_bytes > 0) {
    int64_t arenas = 0;
    for (int owner = 0; owner < kOwners; ++owner)
      arenas += job.buffers.is_on_device(static_cast<Owner>(owner)) && job.buffers.bytes(static_cast<Owner>(owner)) > 0;
    beside.push_back({"NCCL buffers (estimate)", nccl_bytes});
    beside.push_back({"rounding of arenas (estimate)", arenas * comm::kNcclPieceBytes});
  }
  return beside;
}

int64_t sum_of(const std::vector<ExtraMemory>& beside) {
  int64_t bytes = 0;
  for (const ExtraMemory& row : beside) bytes += row.size_bytes;
  return bytes;
}

}  // namespace slipstream::planner
