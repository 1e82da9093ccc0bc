// SPDX-License-Identifier: Apache-2.0
#pragma once
// What limits a rehearsed step, and its longest waits as sentences.

#include <array>
#include <string>
#include <vector>

#include "trainer/planner/forecast/planned.h"

namespace slipstream::planner {

enum class Bottleneck : uint8_t { compute, memory, bandwidth, latency, bubble, input };
const char* name_of(Bottleneck bottleneck);

/// The time of a step on the first stage: works that arithmetic or memory limits (with recomputation and updates),
/// waits for bytes and for the latency of communication, bubbles, and waits for the batch.
struct StepShares {
  std::array<double, 6> ms{};  // by Bottleneck
  Bottleneck largest() const;
  double sum_ms() const;
};
/// Returns the shares of the plan's step. Pure.
StepShares shares_of(const Planned& planned, const comm::Rehearsal& rehearsal);

/// A wait such as "backward of layer 3 waits 1.90 ms for all_gather of layer 2".
struct LongWait {
  std::string waiter, awaited;
  double ms = 0;  // in a mean step
};
/// Returns at most `count` waits, the longest first. Waits with equal words are added up. Pure.
std::vector<LongWait> longest_waits(const Planned& planned, const comm::Rehearsal& rehearsal, size_t count);

}  // namespace slipstream::planner
