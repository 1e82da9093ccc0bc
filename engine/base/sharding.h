// SPDX-License-Identifier: Apache-2.0
#pragma once
// What ranks with the same parameters divide among themselves: the one home of ZeRO's stages.

#include <cstdint>

namespace slipstream {

/// What ranks divide among themselves. Everything else is whole on each of them.
struct Sharding {
  bool states = false;      // optimizer states and master weights
  bool gradients = false;   // pass through a slot, and only the sum of the own shard stays
  bool parameters = false;  // pass through a slot, and are gathered for each use
  bool operator==(const Sharding&) const = default;
};
/// ZeRO's stages (Rajbhandari et al. 2020): stage 1 divides states, stage 2 gradients as well, stage 3 parameters as
/// well. No other code compares the number.
constexpr Sharding sharding_of_stage(int64_t zero_stage) {
  return {.states = zero_stage >= 1, .gradients = zero_stage >= 2, .parameters = zero_stage >= 3};
}

}  // namespace slipstream
