// SPDX-License-Identifier: Apache-2.0
#pragma once
// Waits between plans, derived from declared accesses alone: the first access to bytes waits for the last accesses of
// earlier runs to them.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/plan/plan.h"

namespace slipstream::comm {

/// Pure. The waits that `next` needs on the runs of `history` (oldest first). They are pruned by vector clocks: channel
/// order, waits inside the plans and the other waits imply none of them. Byte ranges are compared, so views that
/// overlap in part are found. All plans must be finished, and each must be free of hazards of its own.
/// Throws: PlanError if a plan is not finished.
std::vector<SeamWait> link(std::span<const Plan* const> history, const Plan& next,
                           const std::vector<Channel>& channels);

/// The same for every run of a sequence, each with all earlier ones as its history: seams[i] are the waits of runs[i].
std::vector<std::vector<SeamWait>> link_all(std::span<const Plan* const> runs, const std::vector<Channel>& channels);

/// Pure. The runs of `history` that the next plan may have to wait for, as indices into it, oldest first. They are the
/// last 3 of each row of repeats, of these the last 6, and at least the last run of every plan.
///
/// Dropping the others is sound: if an item of an older run of plan P touches some bytes, then the same item of P's
/// last run touches the same bytes, later on the same in-order channel, so a wait for the later one covers the earlier.
/// The waits inside the kept history that link() then assumes are implied by those that were placed (induction over
/// runs). So link() over the kept runs orders every pair that link() over all runs orders. The size is bounded by 6 +
/// the number of distinct plans, so the kept sequence of plans is a cache key for the results of link(): there
/// SeamWait::run counts kept runs, and compact()[run] is the index into `history`.
std::vector<uint32_t> compact(std::span<const Plan* const> history);

}  // namespace slipstream::comm
