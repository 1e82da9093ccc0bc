// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds pairs of conflicting accesses that nothing orders, in a sequence of runs of one rank; and pairs that only the
// computed order of a channel orders, where the planner forgot to say which comes first.

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
  std::string behind;      // the last item of the earlier channel that `later` is ordered behind; empty: none
  std::string event;       // the first item from `earlier` on, on its channel, that records an event; empty: none yet
  bool by_chance = false;  // ordered, but by the computed order of their channel alone
  const char* counted = "run";  // what earlier_run and later_run count

  /// "adamw/3 (channel update, run 1) writes params bytes 0..64 while forward/3 (channel compute, run 0) may still be
  /// reading them: add a wait of adamw/3 for forward/3. The nearest event is that of forward/4; of channel compute it
  /// waits for nothing behind forward/2."
  std::string sentence() const;
};

struct HazardReport {
  std::vector<Hazard> hazards;  // the first kHazardsKept
  int64_t count = 0;            // of all
  int64_t items = 0;            // checked
};
constexpr size_t kHazardsKept = 32;

/// What one rank runs in a row: seams[i] are the waits of runs[i] on earlier ones; SeamWait::run indexes `runs`.
struct Sequence {
  std::span<const Plan* const> runs;
  std::span<const std::vector<SeamWait>> seams;
};

/// Walks the sequence with vector clocks over channels, waits and seam waits; compares byte ranges. `buffers` names
/// what it finds and may be null. Pure. Throws: PlanError if a plan is not finished.
HazardReport find_hazards(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers);

/// Conflicting accesses of `plan` that its waits and its spine leave unordered: then a computed order decides which
/// comes first, and with other prices it may decide otherwise, without a race and with other results (docs/notes/0006).
/// For a plan with an order but not pruned: pruning drops what channel order implies. Pure. Throws: PlanError if it has
/// no order.
HazardReport find_implicit_order(const Plan& plan, const std::vector<Channel>& channels, const Buffers* buffers);

/// What changing one wait at a time did. A wait is `redundant` if the change alters no clock; `missed` if it does but
/// no hazard appears: then the wait orders something that no declared access needs.
struct Mutations {
  int64_t waits = 0, caught = 0, redundant = 0, missed = 0;
  std::vector<std::string> redundant_names, missed_names;  // "later <- earlier"

  Mutations& operator+=(const Mutations& other);
};
enum class Mutation : uint8_t {
  deleted,    // the wait is gone
  one_early,  // it is for the item before, on the channel of the one waited for: a release too early
};

/// Changes every Item::after entry (in all runs of its plan) and every seam wait, one at a time. waits x find_hazards.
Mutations mutate_waits(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers,
                       Mutation mutation = Mutation::deleted);

}  // namespace slipstream::comm
