// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the simulator believes about a machine: rates of one rank and links between ranks.

#include <cstdint>
#include <string>
#include <vector>

namespace slipstream {

/// Rates are per rank (a GPU, or the threads of one process on a CPU). They are what real programs reach, not datasheet
/// peaks, but for the peak of the matrix units, which `matmul_efficiency` scales.
struct Machine {
  std::string name;
  double flops_per_second_f32 = 0;   // peak of fp32 matrix products as trained (no TF32)
  double flops_per_second_bf16 = 0;  // peak of bf16 products with fp32 sums
  double matmul_efficiency = 1;      // share of the peak that large matrix products reach, 0 to 1
  int64_t bytes_per_second = 0;      // memory bandwidth that a copy reaches, read and written bytes together
  int64_t memory_bytes = 0;
  int64_t launch_ns = 0;  // smallest time of one piece of work
  int64_t ranks_per_node = 1;
  int64_t intra_bytes_per_second = 0;  // per rank and direction, as collectives reach it within a node
  int64_t intra_latency_ns = 0;        // one hop
  int64_t inter_bytes_per_second = 0;  // per rank and direction, between nodes
  int64_t inter_latency_ns = 0;
};

/// Reads a machine file (configs/machines/*.toml). Every key is needed: nothing is believed silently.
/// Throws: ConfigError with the place, or naming the first key that is missing.
Machine load_machine(const std::string& path);

/// This host shared by `ranks` ranks of `threads` threads (>= 1); 0 ranks: by as many as it has cores for. Cores of the
/// affinity mask, their instructions and memory are read, rates are built in and conservative (machine.cpp has each
/// with its reason), so that predictions err on the slow side.
Machine this_host(int threads, int ranks = 0);

/// What all ranks plan for when each believes one of `machines`, rank 0's first: rank 0's, with the least memory that
/// any has, and nodes of so many ranks in a row that no such row crosses two of theirs. Pure.
Machine common_machine(const std::vector<Machine>& machines);

}  // namespace slipstream
