// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds pairs of conflicting accesses that nothing orders, in a sequence of runs of one rank.

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

  /// "adamw/3 (channel update, run 1) writes params bytes 0..64 while forward/3 (channel compute, run 0) may still be
  /// reading them: add a wait of adamw/3 for forward/3."
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

/// Walks the sequence with vector clocks over channels, waits and seam waits; compares byte ranges. `buffers` names what
/// it finds and may be null. Pure. Throws: PlanError if a plan is not finished.
HazardReport find_hazards(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers);

/// What deleting one wait at a time did. A wait is `redundant` if its absence changes no clock; `missed` if it does but
/// no hazard appears: then it orders something that no declared access needs.
struct Mutations {
  int64_t waits = 0, caught = 0, redundant = 0, missed = 0;
  std::vector<std::string> redundant_names, missed_names;  // "later <- earlier"
};

/// Deletes every Item::after entry (in all runs of its plan) and every seam wait, one at a time. waits x find_hazards.
Mutations mutate_waits(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers);

}  // namespace slipstream::comm
