// SPDX-License-Identifier: Apache-2.0
// The ranks first exchange their choice of device, so that all use the same kind.

#include "trainer/runtime/rank/device_assignment.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "comm/nccl/nccl.h"
#include "engine/base/log.h"
#include "engine/base/units.h"
#include "engine/config/validate.h"
#include "engine/device/cuda/cuda_choice.h"
#include "kernels/attention/attention_path.h"
#include "kernels/common/early_launch.h"
#include "kernels/hold/hold.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/runtime/rank/library_tables.h"

namespace slipstream::runtime {
namespace {

/// Returns the reason why "auto" does not look for a GPU; empty if it does.
std::string ruled_out(const RunConfig& config) {
  if (config.comm.backend == Backend::mpi) return "comm.backend = \"mpi\" moves host memory";
  return "";
}

/// Returns the reason why this rank cannot train on a GPU of `devices` among `ranks` ranks; empty if it can.
std::string reason_against(const CudaDevices& devices, int ranks) {
  if (devices.count() == 0) return devices.reason;
  if (ranks > 1 && comm::nccl_version() == 0)
    return "this build has no NCCL, which several ranks need. Configure with -Dnccl=enabled";
  // Older versions do not order launches of several communicators (NCCL_LAUNCH_ORDER_IMPLICIT), so that ranks can
  // deadlock.
  constexpr int kOldestNccl = 22700;
  if (ranks > 1 && comm::nccl_version() < kOldestNccl)
    return fmt::format("NCCL is {}, but several ranks need {} (2.27) or newer. Install it", comm::nccl_version(),
                       kOldestNccl);
  return "";
}

}  // namespace

std::unique_ptr<Device> DeviceAssignment::make_device() const {
  if (kind != DeviceKind::cuda) return make_cpu_device();
  return ranks > 1 ? make_cuda_device(gpu, comm::nccl_device_memory()) : make_cuda_device(gpu);
}

namespace {

DeviceAssignment choose(World& world, const RunConfig& config) {
  if (config.device.kind == DeviceChoice::cpu || !ruled_out(config).empty()) return {};
  const bool asked = config.device.kind == DeviceChoice::cuda || config.comm.backend == Backend::nccl;
  // This must be set before the first CUDA call. By default, streams share 8 queues of the GPU, and streams of one
  // queue wait for each other.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const CudaDevices devices = find_cuda_devices();
  const std::string reason = reason_against(devices, world.size());
  if (!asked) {
    const std::vector<std::string> reasons = world.all_gather(reason);
    for (size_t r = 0; r < reasons.size(); ++r) {
      if (reasons[r].empty()) continue;
      log_info("device.kind = \"auto\" uses the CPU: {}{}", world.size() > 1 ? fmt::format("rank {}: ", r) : "",
               reasons[r]);
      return {};
    }
  }
  DeviceAssignment assignment{.kind = DeviceKind::cuda, .ranks = world.size()};
  const bool shared = gpus_are_shared();
  world.together([&] {
    if (!reason.empty())
      throw ResourceError("[cuda] no GPU can be used: {}. Set device.kind = \"cpu\" to train without a GPU.", reason);
    assignment.gpu = cuda_device_of(devices, world.rank_on_host());
  });
  // Exchanges "HOST ID" of every rank. Ranks of one host must not name a GPU twice.
  const std::string& id = devices.ids[static_cast<size_t>(assignment.gpu)];
  const std::vector<std::string> versions = world.all_gather(fmt::format("{}", comm::nccl_version()));
  const std::vector<std::string> taken = world.all_gather(fmt::format("{} {}", world.host(), id));
  world.together([&] {
    const std::string host = fmt::format("{} ", world.host());
    std::vector<std::string> here;
    for (const std::string& entry : taken)
      if (entry.starts_with(host)) here.push_back(entry.substr(host.size()));
    require_own_gpus(here, shared);
    for (int r = 0; r < world.size(); ++r)
      if (taken[static_cast<size_t>(r)] == host + id) assignment.ranks_on_gpu.push_back(r);
    for (size_t r = 1; r < versions.size(); ++r)
      if (versions[r] != versions[0])
        throw CommError(
            "[nccl] rank {} has NCCL {}, but rank 0 has {} (22809 is 2.28.9). Install the same version on all hosts.",
            r, versions[r], versions[0]);
    const CudaGpu gpu = describe_cuda_device(assignment.gpu);
    assignment.name = gpu.name;
    assignment.capability = gpu.capability;
    assignment.driver = gpu.driver;
  });
  for (const std::string& theirs : world.all_gather(fmt::format("{}", assignment.driver)))
    assignment.driver = std::min(assignment.driver, std::stoi(theirs));
  comm::prepare_nccl_environment(
      {.world_rank = world.rank(), .shares_gpu = shared, .deterministic = config.comm.deterministic == Choice::yes});
  return assignment;
}

}  // namespace

DeviceAssignment assign_device(World& world, const RunConfig& config) {
  world.together([] {
    kernels::require_attention_path();
    kernels::require_early_launch();
  });
  DeviceAssignment assignment = choose(world, config);
  if (assignment.kind == DeviceKind::cuda) {
    world.together([&] { kernels::attention_path(assignment.capability); });  // refuses a path that this GPU lacks
    if (const std::string remark = kernels::attention_remark(assignment.capability); !remark.empty())
      log_info("note: {}", remark);
    read_tables(world, config, assignment);
  } else {
    world.together([&] {
      require_settings_of_cpu(config);
      if (config.comm.emulate.form == EmulateForm::gate) return;
      throw ConfigError("[config] comm.emulate.form = \"{}\" needs a GPU, but this run is on the CPU. Use \"gate\".",
                        config.comm.emulate.form == EmulateForm::copies ? "copies" : "blocks");
    });
  }
  return assignment;
}

namespace {
// The memory of the emulated link: staging for copies, and flags that release held blocks.
constexpr int64_t kStagingBytes = kMiB;
constexpr size_t kFlags = 65536;
}  // namespace

WireOptions DeviceAssignment::wire(const RunConfig& config, Device& device) const {
  WireOptions wire{.nccl = nccl, .traffic = {}, .sockets = config.comm.backend != Backend::mpi};
  if (kind != DeviceKind::cuda) return wire;
  // All channels share this memory, because the copied bytes are never read.
  struct Memory {
    std::unique_ptr<Allocation> staging, scratch, flags;
    size_t flags_taken = 0;
  };
  const auto memory = std::make_shared<Memory>();
  memory->flags = device.allocate_host(static_cast<int64_t>(kFlags * sizeof(uint32_t)), "flags of the emulated link");
  wire.traffic.make_flag = [memory] {
    if (memory->flags_taken == kFlags)
      throw ConfigError("[config] comm.emulate supports at most {} tasks. Use larger buckets.", kFlags);
    return reinterpret_cast<uint32_t*>(memory->flags->data()) + memory->flags_taken++;
  };
  const auto limit_ns = config.comm.timeout_seconds * 1'000'000'000;
  wire.traffic.await = [limit_ns](LaunchContext& context, const uint32_t* flag, uint32_t value) {
    kernels::await_flag(context, {.flag = flag, .value = value, .limit_ns = limit_ns});
  };
  if (config.comm.emulate.form == EmulateForm::gate) return wire;
  if (config.comm.emulate.form == EmulateForm::copies) {
    wire.traffic.form = comm::LinkForm::copies;
    memory->staging = device.allocate_host(kStagingBytes, "staging of the emulated link");
    memory->scratch = device.allocate(kStagingBytes, "scratch of the emulated link");
    wire.traffic.copy = [memory](LaunchContext& context, const std::byte* from, int64_t size_bytes) {
      kernels::copy_around(context, {.memory = from,
                                     .size_bytes = size_bytes,
                                     .staging = memory->staging->data(),
                                     .scratch = memory->scratch->data(),
                                     .staging_bytes = kStagingBytes});
    };
    return wire;
  }
  wire.traffic.form = comm::LinkForm::blocks;
  wire.traffic.hold = [memory, blocks = static_cast<int>(config.comm.emulate.blocks), limit_ns](
                          LaunchContext& context, const std::byte* from, int64_t size_bytes, int64_t wire_ns,
                          const uint32_t* release) {
    kernels::hold_blocks(context, {.memory = from,
                                   .size_bytes = size_bytes,
                                   .release = release,
                                   .blocks = blocks,
                                   .ns = wire_ns,
                                   .limit_ns = limit_ns});
  };
  return wire;
}

DeviceAssignment assign_device_alone(DeviceChoice kind) {
  kernels::require_attention_path();
  kernels::require_early_launch();
  if (kind == DeviceChoice::cpu) return {};
  const CudaDevices devices = find_cuda_devices();
  if (kind == DeviceChoice::automatic && devices.count() == 0) return {};
  const int gpu = cuda_device_of(devices, 0);
  const CudaGpu described = describe_cuda_device(gpu);
  kernels::attention_path(described.capability);
  return {.kind = DeviceKind::cuda, .gpu = gpu, .name = described.name, .capability = described.capability};
}

Machine machine_at(const DeviceAssignment& assignment, const RunConfig& config, int threads, int ranks_on_host) {
  if (assignment.kind != DeviceKind::cuda || !config.device.machine.empty())
    return planner::machine_of(config, "", threads, ranks_on_host);
  const CudaGpu gpu = describe_cuda_device(assignment.gpu);
  // The multiply-adds of a multiprocessor per clock, two flops each: the dense bf16 rate doubled from Ampere to Hopper.
  const double clock_hz = static_cast<double>(gpu.clock_khz) * 1e3 * gpu.multiprocessors;
  return {.name = gpu.name,
          .device = MachineDevice::cuda,
          .flops_per_second_f32 = 2.0 * 128 * clock_hz,
          .flops_per_second_bf16 = 2.0 * (gpu.capability >= 90 ? 2048 : 1024) * clock_hz,
          .matmul_efficiency = 0.7,
          .bytes_per_second = static_cast<int64_t>(0.9 * static_cast<double>(gpu.bytes_per_second)),
          .memory_bytes = gpu.free_bytes / std::max<int64_t>(1, std::ssize(assignment.ranks_on_gpu)),
          .card = card_of(gpu.name),
          .multiprocessors = gpu.multiprocessors,
          .launch_ns = 4 * kMicrosecond,
          .ranks_per_node = ranks_on_host,
          // Without a machine file, these are conservative rates of PCIe 4 and 100 Gbit/s.
          .intra_bytes_per_second = 20'000'000'000,
          .intra_latency_ns = 10 * kMicrosecond,
          .inter_bytes_per_second = 12'500'000'000,
          .inter_latency_ns = 20 * kMicrosecond};
}

Machine agreed_machine(World& world, const Machine& machine) {
  struct Numbers {
    double flops_f32, flops_bf16, efficiency;
    int64_t bytes_per_second, memory_bytes, launch_ns, ranks_per_node, intra_bytes, intra_ns, inter_bytes, inter_ns;
    int64_t card, multiprocessors;
  };
  const Numbers own{machine.flops_per_second_f32,   machine.flops_per_second_bf16,  machine.matmul_efficiency,
                    machine.bytes_per_second,       machine.memory_bytes,           machine.launch_ns,
                    machine.ranks_per_node,         machine.intra_bytes_per_second, machine.intra_latency_ns,
                    machine.inter_bytes_per_second, machine.inter_latency_ns,       static_cast<int64_t>(machine.card),
                    machine.multiprocessors};
  std::vector<Machine> machines;
  for (const std::string& bytes : world.all_gather(std::string(reinterpret_cast<const char*>(&own), sizeof own))) {
    Numbers theirs{};
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    // The rates are rank 0's. The other values of a machine file enter the plan, whose hash the ranks compare.
    Machine& other = machines.emplace_back(machine);
    other.flops_per_second_f32 = theirs.flops_f32;
    other.flops_per_second_bf16 = theirs.flops_bf16;
    other.matmul_efficiency = theirs.efficiency;
    other.bytes_per_second = theirs.bytes_per_second;
    other.memory_bytes = theirs.memory_bytes;
    other.card = static_cast<Card>(theirs.card);
    other.multiprocessors = theirs.multiprocessors;
    other.launch_ns = theirs.launch_ns;
    other.ranks_per_node = theirs.ranks_per_node;
    other.intra_bytes_per_second = theirs.intra_bytes;
    other.intra_latency_ns = theirs.intra_ns;
    other.inter_bytes_per_second = theirs.inter_bytes;
    other.inter_latency_ns = theirs.inter_ns;
  }
  return common_machine(machines);
}

}  // namespace slipstream::runtime
