// SPDX-License-Identifier: Apache-2.0
#pragma once
// Snapshots in memory that outlives the process. Every rank keeps its own snapshots and a second copy of another
// rank's.

#include <cstdint>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

/// Pure. The holder of rank r's second copy is rank (r + this result) modulo `ranks`, which is a permutation. Let nodes
/// have `ranks_per_node` consecutive ranks, the last one perhaps fewer. Then no rank shares a node with its holder, as
/// long as no node has more than half of all ranks. With one node, the holder is the next rank. With one rank, the
/// result is 0.
int holder_offset(int ranks, int64_t ranks_per_node);

/// Pure. Returns the slot of the state after `step`.
int kept_slot(const Keeping& keeping, int64_t interval, int64_t step);

/// Adds a plan of PlanKind::keep to the jobs of all pipeline stages, with its buffers and channels:
///
///   copy of every saved array into a slot -> seal (its header, with a hash) -> the header's exchange -> agreement
///                                    `-> exchange of pieces of the slot --------------^
///
/// A slot that has arrived with its header is complete. After the agreement, the slot is complete on all ranks. The
/// next run overwrites an older slot, and link() makes it begin after the agreement. Plans name the bytes of one slot,
/// so that runs with different slots are ordered as if they used the same one.
void add_keeping(const std::vector<Job*>& stages, int to_holder);

}  // namespace slipstream
