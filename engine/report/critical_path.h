// SPDX-License-Identifier: Apache-2.0
#pragma once
// Splits the waits of all ranks in a step into exposed communication and bubbles.
//
// Replays the step on an infinitely fast network. Every item begins after everything that it awaits, plus the delay
// that its own host added. Works last as long as measured, and a task ends when its last member enters. All ranks have
// the same period, so the step becomes shorter by the same time on all of them: by the least that any rank allows. On
// every rank this time counts as exposed, but at most the time for which the rank waited for communication. The rest of
// the rank's waits is a bubble.

#include <cstdint>
#include <vector>

#include "engine/report/overlap.h"

namespace slipstream {

/// The dependencies of a rank's training plan, by item. Items on one channel also run in order.
struct PlanGraph {
  static constexpr uint64_t kLocal = 0;
  std::vector<uint32_t> channels;
  /// Ids of communication, equal on its members; kLocal: an item of this rank alone, even on a channel of communication
  /// (sums of shards, casts).
  std::vector<uint64_t> rendezvous_ids;
  std::vector<std::vector<uint32_t>> awaited;
  std::vector<std::vector<uint32_t>> awaited_before;  // items of the previous step
};

/// A step of one rank. Its times are on a clock that all ranks share.
struct RankStep {
  StepTimes* times = nullptr;
  const PlanGraph* plan = nullptr;
};

/// Pure. Joins consecutive works of a channel that follow each other at once, where no dependency on another channel
/// begins or ends between them. split_waits() gives the same result with fewer works.
std::vector<WorkTime> joined_works(const std::vector<WorkTime>& works, const PlanGraph& plan);

/// Sets comm, hidden, skew, exposed and bubble of the same step on all ranks. Takes time in proportion to the items and
/// dependencies of two steps of all ranks.
void split_waits(const std::vector<RankStep>& ranks);

}  // namespace slipstream
