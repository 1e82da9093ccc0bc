// SPDX-License-Identifier: Apache-2.0
#pragma once
// Snapshots in memory that outlives the process: every rank keeps its own, and a second copy of another rank's.

#include <cstdint>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

/// Pure. The holder of rank r's second copy is rank (r + this) modulo `ranks`: a permutation. If nodes have
/// `ranks_per_node` consecutive ranks, the last one perhaps fewer, no rank shares a node with its holder as long as no
/// node has more than half of all ranks. With one node it is the next rank. 0 for one rank.
int holder_offset(int ranks, int64_t ranks_per_node);

/// Pure. The slot of the state after `step`.
int kept_slot(const Keeping& keeping, int64_t interval, int64_t step);

/// Adds a plan of PlanKind::keep to the jobs of all pipeline stages, with its buffers and channels:
///
///   copy of every saved array into a slot -> seal (its header, with a hash) -> the header's exchange -> agreement
///                                    `-> exchange of pieces of the slot --------------^
///
/// A slot that has arrived with its header is complete; after the agreement it is so on all ranks. The next run
/// overwrites an older slot and begins behind the agreement, by link(). Plans name the bytes of one slot: runs that use
/// different ones are ordered as if they used the same.
void add_keeping(const std::vector<Job*>& stages, int to_holder);

}  // namespace slipstream
