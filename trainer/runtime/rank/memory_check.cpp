// SPDX-License-Identifier: Apache-2.0
// Compares the memory of ranks that share a device or host with its size.

#include "trainer/runtime/rank/memory_check.h"

#include <fstream>
#include <sstream>

#include "comm/nccl/nccl.h"
#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "engine/base/units.h"
#include "engine/device/cuda/cuda_choice.h"
#include "engine/plan/memory.h"
#include "trainer/planner/forecast/extra_memory.h"
#include "trainer/planner/options/engines.h"

namespace slipstream::runtime {

planner::JobRequest request_at(const DeviceAssignment& assignment, const ResolvedConfig& config, const Machine& machine,
                               int rank) {
  planner::JobRequest request{.config = config, .rank = rank, .machine = machine, .driver = assignment.driver};
  if (assignment.kind != DeviceKind::cuda) return request;
  request.nccl = assignment.nccl;
  request.nccl_version = comm::nccl_version();
  request.extra_bytes = [asked = request](const Job& job) {
    const planner::Engines engines = planner::choose_engines(asked, job.mesh, job.channels);
    return planner::sum_of(planner::extra_memory_on_gpu(job, engines.nccl, asked.machine.ranks_per_node));
  };
  return request;
}

namespace {

/// Blocks. Collective. Returns the sum of the numbers of all ranks of this host.
int64_t sum_on_this_host(World& world, int64_t bytes) {
  int64_t sum = 0;
  for (const std::string& entry : world.all_gather(fmt::format("{} {}", world.host(), bytes))) {
    int host = 0;
    int64_t theirs = 0;
    std::istringstream(entry) >> host >> theirs;
    if (host == world.host()) sum += theirs;
  }
  return sum;
}

}  // namespace

void require_host_memory(World& world, const RunConfig& config, const Job& job, const Machine& machine,
                         int64_t data_bytes) {
  const int64_t need = job.buffers.total_bytes() + data_bytes;
  // Pipeline stages need different amounts, and ranks of one host share its memory.
  const int64_t all = sum_on_this_host(world, need);
  world.together([&] {
    if (!config.device.machine.empty()) {
      if (machine.memory_bytes > 0 && need > machine.memory_bytes)
        throw ResourceError(
            "[plan] a rank needs {} but {} has {}. {}Use more ranks, a smaller train.micro_batch_size or a smaller "
            "model.\n{}",
            format_bytes(need), machine.name, format_bytes(machine.memory_bytes),
            slots_remedy(job, need - machine.memory_bytes), memory_table(job));
      return;
    }
    const int ranks = world.ranks_on_host();
    const int64_t host_bytes = machine.memory_bytes * ranks;
    if (host_bytes > 0 && all > host_bytes)
      throw ResourceError(
          "[plan] {} on this host need{} {} but it has {}. {}Use a smaller train.micro_batch_size, or fewer ranks "
          "here.\n{}",
          counted(ranks, "rank"), ranks == 1 ? "s" : "", format_bytes(all), format_bytes(host_bytes),
          slots_remedy(job, (all - host_bytes + ranks - 1) / ranks), memory_table(job));
  });
}

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; status.ignore(4096, '\n')) {
    int64_t kib = 0;
    if (key == "VmHWM:" && status >> kib) return kib * kKiB;
  }
  return 0;
}

namespace {

/// Pinned memory cannot be swapped out, so the snapshots of all ranks of this host must fit into what it has.
void require_snapshot_memory(World& world, const Job& job) {
  const int64_t own = job.buffers.bytes(Owner::snapshot);
  const int64_t bytes = sum_on_this_host(world, own);
  world.together([&] {
    const int64_t has = this_host(1, 1).memory_bytes;
    if (bytes > has)
      throw ResourceError(
          "[plan] the snapshots of {} on this host need {} of its memory, {} of it for this one, but it has {}. Use "
          "checkpoint.async = false, or fewer ranks here.",
          counted(world.ranks_on_host(), "rank"), format_bytes(bytes), format_bytes(own), format_bytes(has));
  });
}

}  // namespace

void require_gpu_memory(World& world, const DeviceAssignment& assignment, const Job& job, int64_t ranks_per_node) {
  const std::vector<ExtraMemory> beside = planner::extra_memory_on_gpu(job, assignment.nccl, ranks_per_node);
  const int64_t need = job.buffers.total_bytes() + planner::sum_of(beside);
  const std::vector<std::string> needs = world.all_gather(fmt::format("{}", need));
  require_snapshot_memory(world, job);
  world.together([&] {
    int64_t all = 0;
    for (int rank : assignment.ranks_on_gpu) all += std::stoll(needs[static_cast<size_t>(rank)]);
    const CudaGpu gpu = describe_cuda_device(assignment.gpu);
    if (all <= gpu.free_bytes) return;
    const int64_t ranks = std::ssize(assignment.ranks_on_gpu);
    throw ResourceError(
        "[plan] {} but {} has {} free of {}. {}Use {} ranks{}, a smaller train.micro_batch_size or a smaller model{}, "
        "or end other processes on this GPU.\n{}",
        ranks == 1 ? fmt::format("a rank needs {}, {} of it beside the plan,", format_bytes(need),
                                 format_bytes(planner::sum_of(beside)))
                   : fmt::format("{} ranks on one GPU need {}, this one {} of it,", ranks, format_bytes(all),
                                 format_bytes(need)),
        gpu.name, format_bytes(gpu.free_bytes), format_bytes(gpu.memory_bytes),
        slots_remedy(job, (all - gpu.free_bytes + ranks - 1) / ranks), ranks == 1 ? "more" : "fewer",
        ranks == 1 ? "" : " on it",
        job.mesh.world() > 1 ? ", fewer blocks of NCCL (max_ctas in the table of comm.nccl, NCCL_BUFFSIZE)" : "",
        memory_table(job, beside));
  });
}

std::string gpu_memory_line(const DeviceAssignment& assignment, const Job& job, int64_t ranks_per_node,
                            int64_t free_at_start) {
  const int64_t planned = job.buffers.total_bytes() +
                          planner::sum_of(planner::extra_memory_on_gpu(job, assignment.nccl, ranks_per_node)),
                ranks = std::ssize(assignment.ranks_on_gpu),
                taken = free_at_start - describe_cuda_device(assignment.gpu).free_bytes;
  return fmt::format("GPU:      {} taken{}, {} in the table{}", format_bytes(taken),
                     ranks == 1 ? "" : fmt::format(" by {} ranks", ranks), format_bytes(planned),
                     ranks == 1 ? "" : " of this one");
}

}  // namespace slipstream::runtime
