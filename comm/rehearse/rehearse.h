// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs plans of all ranks in virtual time: start and end of every item, exposed time, and deadlocks by name.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/rehearse/price.h"
#include "comm/rehearse/runs.h"
#include "engine/plan/plan.h"

namespace slipstream::comm {

struct Span {
  int64_t start_ns = 0;  // of communication: when its last member entered
  int64_t end_ns = 0;
  int64_t duration_ns() const { return end_ns - start_ns; }
};

/// Idle time of a compute stream, charged to a task. Local tasks: compute waits for them with an infinitely fast
/// network too. Communication: the part of a wait that an infinitely fast network removes, charged along the critical
/// path from the last task that the item waited for. The charges of communication add up to RankTimes::exposed_ns.
struct Exposed {
  uint32_t run = 0;  // of the compute item that waited
  ItemId item = 0;
  ItemId awaited = 0;
  int64_t time_ns = 0;
};

struct RankTimes {
  int rank = 0;
  std::vector<std::vector<Span>> runs;  // [run][item]
  std::vector<int64_t> busy_ns;         // by channel: union of its spans over all runs
  std::vector<Exposed> exposed;         // in the order of the items that waited
  int64_t exposed_ns = 0;               // idle time that an infinitely fast network removes
  int64_t bubble_ns = 0;                // idle time that remains with one, less waits for local tasks
  int64_t communication_ns = 0;         // union over all communication channels

  /// Start of the first spine item of `run + 1` less that of `run`. Both plans must have a spine.
  int64_t step_period_ns(size_t run) const { return runs[run + 1][0].start_ns - runs[run][0].start_ns; }
};

struct Rehearsal {
  bool finished = false;
  std::string deadlock;  // if not finished: the chain of waits, by rank and item
  int64_t makespan_ns = 0;
  std::vector<RankTimes> ranks;  // as given; empty if not finished
};

/// Pure. Rehearses finished plans: the order of a channel is the projection of Plan::order.
/// Throws: PlanError if a plan is not finished or a rank is missing. A deadlock is a result, not an error.
Rehearsal rehearse(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks,
                   const Price& price, const RehearseOptions& options = {});

/// Pure. RankTimes::step_period_ns(`run`) of the first rank without the rest of a rehearsal; -1 in a deadlock before
/// it.
/// Throws: as rehearse().
int64_t rehearsed_period_ns(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks,
                            const Price& price, const RehearseOptions& options, size_t run);

}  // namespace slipstream::comm
