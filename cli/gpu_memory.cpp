// SPDX-License-Identifier: Apache-2.0
// Counts streams and communicators of a job as Rank and World will make them.

#include "cli/gpu_memory.h"

#include <algorithm>

#include "comm/nccl/nccl_memory.h"
#include "comm/wiring.h"
#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/device/cuda/cuda_choice.h"
#include "engine/plan/memory.h"
#include "kernels/cuda/workspace.h"

namespace slipstream::cli {

std::vector<Beside> beside_plan_on_gpu(const Job& job, const comm::NcclTable& table, int64_t ranks_per_node) {
  const int64_t streams = std::count_if(job.channels.begin(), job.channels.end(),
                                        [](const Channel& channel) { return channel.axis == Axis::self; });
  int64_t nccl_bytes = 0;
  const comm::Wiring wiring = comm::wire_up(job);
  for (size_t i = 0; i < wiring.connections.size(); ++i) {
    const Axis axis = wiring.connections[i];
    if (job.mesh.group_size(axis) == 1) continue;
    nccl_bytes += comm::nccl_buffer_bytes(table.of(comm::name_of_connection(job, wiring, i)),
                                          job.mesh.crosses_nodes(axis, ranks_per_node));
  }
  std::vector<Beside> beside = {{"kernels' scratch", streams * kernels::kScratchBytes},
                                {"cuBLASLt workspaces", streams * kernels::kWorkspaceBytes}};
  if (nccl_bytes > 0) {
    int64_t arenas = 0;
    for (int owner = 0; owner < kOwners; ++owner) arenas += job.buffers.bytes(static_cast<Owner>(owner)) > 0;
    beside.push_back({"NCCL buffers (estimate)", nccl_bytes});
    beside.push_back({"rounding of arenas (estimate)", arenas * comm::kNcclPieceBytes});
  }
  return beside;
}

int64_t sum_of(const std::vector<Beside>& beside) {
  int64_t bytes = 0;
  for (const Beside& row : beside) bytes += row.size_bytes;
  return bytes;
}

JobRequest request_at(const Place& place, const RunConfig& config, const Machine& machine, int world, int rank,
                      int64_t vocab) {
  JobRequest request{
      .config = config, .world = world, .rank = rank, .vocab = vocab, .machine = machine, .driver = place.driver};
  if (place.kind != DeviceKind::cuda) return request;
  request.on_gpus = true;
  request.beside_bytes = [nccl = place.nccl, nodes = machine.ranks_per_node](const Job& job) {
    return sum_of(beside_plan_on_gpu(job, nccl, nodes));
  };
  return request;
}

void require_gpu_memory(World& world, const Place& place, const Job& job, int64_t ranks_per_node) {
  const std::vector<Beside> beside = beside_plan_on_gpu(job, place.nccl, ranks_per_node);
  const int64_t need = job.buffers.total_bytes() + sum_of(beside);
  const std::vector<std::string> needs = world.all_gather(fmt::format("{}", need));
  world.together([&] {
    int64_t all = 0;
    for (int rank : place.ranks_on_gpu) all += std::stoll(needs[static_cast<size_t>(rank)]);
    const CudaGpu gpu = describe_cuda_device(place.gpu);
    if (all <= gpu.free_bytes) return;
    const int64_t ranks = std::ssize(place.ranks_on_gpu);
    throw ResourceError(
        "[plan] {} but {} has {} free of {}. {}Use {} ranks{}, a smaller train.micro_batch_size or a smaller model{}, "
        "or end what else uses "
        "this GPU.\n{}",
        ranks == 1 ? fmt::format("a rank needs {}, {} of it beside the plan,", format_bytes(need),
                                 format_bytes(sum_of(beside)))
                   : fmt::format("{} ranks on one GPU need {}, this one {} of it,", ranks, format_bytes(all),
                                 format_bytes(need)),
        gpu.name, format_bytes(gpu.free_bytes), format_bytes(gpu.memory_bytes),
        slots_remedy(job, (all - gpu.free_bytes + ranks - 1) / ranks), ranks == 1 ? "more" : "fewer",
        ranks == 1 ? "" : " on it",
        job.mesh.world() > 1 ? ", fewer blocks of NCCL (max_ctas in the table of comm.nccl, NCCL_BUFFSIZE)" : "",
        memory_table(job, beside));
  });
}

std::string gpu_memory_line(const Place& place, const Job& job, int64_t ranks_per_node, int64_t free_at_start) {
  const int64_t planned = job.buffers.total_bytes() + sum_of(beside_plan_on_gpu(job, place.nccl, ranks_per_node)),
                ranks = std::ssize(place.ranks_on_gpu),
                taken = free_at_start - describe_cuda_device(place.gpu).free_bytes;
  return fmt::format("memory of the GPU: {} taken{}, {} in the table{}", format_bytes(taken),
                     ranks == 1 ? "" : fmt::format(" by {} ranks", ranks), format_bytes(planned),
                     ranks == 1 ? "" : " of this one");
}

}  // namespace slipstream::cli
