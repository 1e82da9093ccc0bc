// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the tests between processes: a rank of this job on a GPU, which ranks share if there are fewer GPUs.

#include <string>
#include <vector>

#include "comm/nccl/nccl.h"
#include "tests/gpu/cuda/card.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::test {

/// `--list RANKS` prints the groups that a test has for this number of ranks, one per line, and needs neither a GPU nor
/// a launcher. The name of a group as the only argument runs it alone.
inline bool lists(int argc, char** argv, const std::vector<std::string>& groups) {
  if (argc < 2 || std::string(argv[1]) != "--list") return false;
  for (const std::string& group : groups) std::puts(group.c_str());
  return true;
}

/// The index of this rank's GPU. Sets NCCL's variables; call it before the first communicator.
inline int card_of(runtime::World& world) {
  const int cards = find_cuda_devices().count();
  comm::prepare_nccl_environment({.world_rank = world.rank(), .shares_gpu = world.ranks_on_host() > cards});
  return world.rank_on_host() % cards;
}

/// Rank 0 prints the findings of all ranks. Returns the exit code of the test.
inline int report(runtime::World& world, const std::string& failures, const std::string& success) {
  std::string all;
  for (const std::string& text : world.all_gather(failures)) all += text;
  if (world.rank() == 0) std::printf("%d ranks: %s\n", world.size(), all.empty() ? success.c_str() : all.c_str());
  return all.empty() ? 0 : 1;
}

}  // namespace slipstream::test
