// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds pairs of conflicting accesses that nothing orders in a sequence of runs of one rank. Also finds pairs that only
// the computed order of a channel orders, although no pass has declared an order.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace slipstream::comm {

struct Hazard {
  std::string earlier, later;  // names of the items; `earlier` is issued first
  uint32_t earlier_run = 0, later_run = 0;
  std::string earlier_channel, later_channel;
  bool earlier_writes = false, later_writes = false;
  std::string buffer;
  int64_t begin_bytes = 0, end_bytes = 0;
  std::string behind;  // the last item of the earlier channel that `later` is ordered after; empty: none
  std::string event;   // the first item from `earlier` on, on its channel, that records an event; empty: none so far
  bool by_chance = false;       // only the computed order of their channel orders them
  const char* counted = "run";  // the unit of earlier_run and later_run

  /// "update/3 (channel update, run 1) writes params bytes 0..64 while forward/3 (channel compute, run 0) may still be
  /// reading them: add a wait of update/3 for forward/3. The nearest event is that of forward/4; of channel compute it
  /// waits for nothing after forward/2."
  std::string sentence() const;
};

struct HazardReport {
  std::vector<Hazard> hazards;  // the first kHazardsKept
  int64_t count = 0;            // of all hazards
  int64_t items = 0;            // the number of items that were checked
};
constexpr size_t kHazardsKept = 32;

/// The runs of one rank in a row: seams[i] are the waits of runs[i] on earlier ones; SeamWait::run indexes `runs`.
struct Sequence {
  std::span<const Plan* const> runs;
  std::span<const std::vector<SeamWait>> seams;
};

/// Pure. Walks through the sequence with vector clocks over channels, waits and seam waits, and compares byte ranges.
/// `buffers` names the slices in the report, and may be null. Throws: PlanError if a plan is not finished.
HazardReport find_hazards(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers);

/// Pure. Finds the conflicting accesses of `plan` that its waits and its spine leave unordered. A computed order
/// decides which access comes first. With other prices it may decide otherwise, without a race but with other results
/// (docs/notes/0006). Expects a plan with an order that is not pruned, because pruning drops waits that channel order
/// implies.
/// Throws: PlanError if the plan has no order.
HazardReport find_implicit_order(const Plan& plan, const std::vector<Channel>& channels, const Buffers* buffers);

/// The result of changing one wait at a time. A wait is `redundant` if the change alters no clock. It is `missed` if
/// the change alters a clock but no hazard appears: then the wait orders something that no declared access needs.
struct Mutations {
  int64_t waits = 0, caught = 0, redundant = 0, missed = 0;
  std::vector<std::string> redundant_names, missed_names;  // "later <- earlier"

  Mutations& operator+=(const Mutations& other);
};
enum class Mutation : uint8_t {
  deleted,    // the wait is gone
  one_early,  // it waits for the previous item of that channel, so it is released too early
};

/// Changes every entry of Item::after (in all runs of its plan) and every seam wait, one at a time. It takes the time
/// of find_hazards for every wait.
Mutations mutate_waits(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers,
                       Mutation mutation = Mutation::deleted);

}  // namespace slipstream::comm
