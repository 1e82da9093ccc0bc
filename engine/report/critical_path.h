// SPDX-License-Identifier: Apache-2.0
#pragma once
// Splits the waits of all ranks in a step into exposed communication and bubbles.
//
// Every item is moved to the time at which it would run on an infinitely fast network: after everything that it waited
// for, plus the delay that its own host added. Communication then ends as its last member enters it. An item moves by
// the communication on the critical path before it, on whatever channel and rank. All ranks have the same period. On
// every rank, that part of the waits is exposed by which the end of a step moves further than its begin, on the rank
// where this is least. The rest of the waits is a bubble.

#include <cstdint>
#include <vector>

#include "engine/report/overlap.h"

namespace slipstream {

/// A step of one rank, with times on a clock that all ranks share, and its plan by item.
struct RankStep {
  StepTimes* times = nullptr;
  const std::vector<uint64_t>* rendezvous_ids = nullptr;        // of communication: equal on its members
  const std::vector<std::vector<uint32_t>>* awaited = nullptr;  // items of the same step that must have ended
};

/// Sets comm, hidden, skew, exposed and bubble of the same step of all ranks. O(n log n) in the items of all ranks.
void split_waits(const std::vector<RankStep>& ranks);

}  // namespace slipstream
