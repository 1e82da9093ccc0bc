// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the tests between processes share: a rank of this job on a card, which ranks share when there are fewer cards.

#include <string>
#include <vector>

#include "comm/nccl/nccl.h"
#include "runtime/world.h"
#include "tests/gpu/cuda/card.h"

namespace slipstream::test {

/// `--list RANKS` prints the groups that a test has for so many ranks, one a line, and needs neither a card nor a
/// launcher. The name of a group as the one argument runs it alone.
inline bool lists(int argc, char** argv, const std::vector<std::string>& groups) {
  if (argc < 2 || std::string(argv[1]) != "--list") return false;
  for (const std::string& group : groups) std::puts(group.c_str());
  return true;
}

/// The index of this rank's card. Sets what NCCL reads; call it before the first communicator.
inline int card_of(runtime::World& world) {
  const int cards = find_cuda_devices().count();
  comm::prepare_nccl_environment({.world_rank = world.rank(), .shares_gpu = world.ranks_on_host() > cards});
  return world.rank_on_host() % cards;
}

/// Rank 0 prints what all ranks found. The exit code of the test.
inline int report(runtime::World& world, const std::string& failures, const std::string& success) {
  std::string all;
  for (const std::string& text : world.all_gather(failures)) all += text;
  if (world.rank() == 0) std::printf("%d ranks: %s\n", world.size(), all.empty() ? success.c_str() : all.c_str());
  return all.empty() ? 0 : 1;
}

}  // namespace slipstream::test
