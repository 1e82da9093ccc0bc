// SPDX-License-Identifier: Apache-2.0
#pragma once
// Compares the bits of parameters that several ranks hold, to name a rank whose replica has drifted.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/runtime/rank/rank.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

/// A hash of one rank's bits of a named tensor or of a part of it. Ranks with the same `place` must have equal bits.
struct HeldBits {
  /// The number of the tensor in name order, 1 for masters and 0 for the weights of compute, the part of a split
  /// tensor, the first element, and the number of elements.
  std::array<int64_t, 5> place = {};
  uint64_t hash = 0;
};

/// Blocks. Returns the bits that other ranks hold as well: resident weights and masters of data replicas, tensors that
/// tensor ranks do not split, and both copies of a tied table. `stages` has the jobs of all stages.
std::vector<HeldBits> replicated_bits(Rank& rank, const std::vector<std::shared_ptr<const Job>>& stages);

struct Drift {
  size_t tensor = 0;       // the first tensor that differs, in name order
  std::vector<int> ranks;  // the minority in any place; without a majority, all ranks of the first place that differs
  bool is_certain = true;  // false: there is no majority
};

/// Returns the ranks whose bits differ from those of most ranks in the same place, or none if all are equal. Pure.
std::optional<Drift> find_drift(std::span<const std::vector<HeldBits>> by_rank);

/// Blocks. Collective. Returns a sentence with the drifted ranks and the first tensor, the same on all ranks; empty if
/// all replicas are equal.
std::string drifted_replicas(World& world, Rank& rank, const std::vector<std::shared_ptr<const Job>>& stages);

}  // namespace slipstream::runtime
