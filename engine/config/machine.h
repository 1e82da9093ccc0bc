// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters of a machine for the simulator: rates of one rank and links between ranks.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace slipstream {

struct HostTimes;

/// The device that computes on a machine.
enum class MachineDevice : uint8_t { cpu, cuda };

/// The GPU models with entries in tables of settings (comm/nccl/card_table.h).
enum class Card : uint8_t { other, a100, h100, h200 };
/// Pure. Returns "A100", "H100", "H200" or "other".
const char* name_of(Card card);
/// Pure. Returns the model of a GPU by the name that its driver reports, such as "NVIDIA H100 80GB HBM3".
Card card_of(const std::string& gpu_name);

enum class SoftwareBase : uint8_t { slipstream, megatron, fsdp, llmq };
enum class SoftwareMemory : uint8_t { plan, fsdp, fsdp_compiled_loss };  // this program's plan, or PyTorch

/// Properties of the training software on a machine that are not part of its plan. The defaults are this program's.
struct Software {
  std::string name = "slipstream";
  SoftwareBase base = SoftwareBase::slipstream;
  double moved_bytes_factor = 1;      // bytes of memory-bound kernels, relative to this program's
  double attention_factor = 1;        // speed of attention, relative to Machine::attention_efficiency
  int64_t host_ns = 0;                // the host's time to launch one kernel; 0: hidden
  int64_t comm_multiprocessors = -1;  // the multiprocessors that a transfer takes from compute; -1: as planned
  int64_t bucket_bytes_per_rank = 0;  // the least bucket size, per data and context rank
  bool stores_scores = false;         // attention consists of products with stored scores
  SoftwareMemory memory = SoftwareMemory::plan;  // what a rank keeps
  bool fp8 = false;                              // the products of layers have fp8 operands
  bool overlaps = true;                          // gradients and messages between stages travel beside compute
};

/// The rates of a machine, per rank (a GPU, or the threads of one process on a CPU). They are rates that real programs
/// reach, not datasheet peaks. The exception is the peak of the matrix units, which `matmul_efficiency` scales.
struct Machine {
  std::string name;
  MachineDevice device = MachineDevice::cpu;
  double flops_per_second_f32 = 0;   // the peak of fp32 matrix products as trained (no TF32)
  double flops_per_second_bf16 = 0;  // the peak of bf16 products with fp32 sums
  double matmul_efficiency = 1;      // the share of the peak that large matrix products reach, 0 to 1
  double flops_per_second_fp8 = 0;   // the peak of fp8 products; 0: unknown
  // Prices by shape (comm/rehearse/kernel_price.h). With 0 they are unknown, and every product has matmul_efficiency.
  double attention_efficiency = 0;
  double fp8_efficiency = 0;
  double depth_overhead = 0;
  double speed_spread = 0;       // the relative standard deviation of the speed of cards; steps wait for the slowest
  int64_t bytes_per_second = 0;  // the memory bandwidth that a copy reaches, counting both read and written bytes
  int64_t memory_bytes = 0;
  Card card = Card::other;      // cuda only
  int64_t multiprocessors = 0;  // 0: unknown, or no card; then transfers by kernels slow no compute
  int64_t launch_ns = 0;        // the smallest time of one piece of work
  int64_t ranks_per_node = 1;
  int64_t nodes = 0;                   // 0: no limit
  int64_t intra_bytes_per_second = 0;  // per rank and direction, as collectives reach it within a node
  int64_t intra_latency_ns = 0;        // one hop
  int64_t inter_bytes_per_second = 0;  // per rank and direction, between nodes
  int64_t inter_latency_ns = 0;
  /// The rate of an all-reduce within a node whose switch adds; 0: as the other verbs.
  int64_t reduce_bytes_per_second = 0;
  Software software;                          // set by `plan --as`, not by a machine file
  std::shared_ptr<const HostTimes> measured;  // by slipstream calibrate (host_times.h); null: there are only rates
  int threads = 1;                            // the threads of a rank's compute; set by the run, not by a machine file
};

/// Reads a machine file, by its path or by the name of a shipped one (path_or_shipped). Every key except `device`
/// (default: cpu), `card`, `multiprocessors`, `nodes` and the prices by shape is required.
/// Throws: ConfigError with the place of the error, or with the first missing key.
Machine load_machine(const std::string& name);

/// Returns the text of a machine file from which load_machine() reads an equal machine. Pure.
std::string machine_toml(const Machine& machine);

/// Describes this host, shared by `ranks` ranks of `threads` threads (>= 1). 0 ranks: as many as its cores hold.
/// Detects the cores of the affinity mask, their instruction sets and the memory. The rates are built in and
/// conservative (machine.cpp gives the reason of each), so that predicted times are rather too long.
Machine this_host(int threads, int ranks = 0);

/// Returns the machine that all ranks plan for, from one machine per rank (rank 0's first): rank 0's rates, the
/// smallest memory, and the largest ranks_per_node for which no group of consecutive ranks crosses a rank's node
/// boundary. Pure.
Machine common_machine(const std::vector<Machine>& machines);

}  // namespace slipstream
