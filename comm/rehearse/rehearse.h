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
  int64_t start_ns = 0;  // of communication: the time at which its last member entered
  int64_t end_ns = 0;
  int64_t duration_ns() const { return end_ns - start_ns; }
};

/// Idle time of a compute stream that is charged to a task. Compute waits for local tasks with an infinitely fast
/// network, too. For communication, this is the part of a wait that an infinitely fast network removes, charged along
/// the critical path from the last task that the item waited for. The charges of communication add up to
/// RankTimes::exposed_ns.
struct Exposed {
  uint32_t run = 0;  // the run of the compute item that waited
  ItemId item = 0;
  ItemId awaited = 0;
  int64_t time_ns = 0;
};

struct RankTimes {
  int rank = 0;
  std::vector<std::vector<Span>> runs;  // by [run][item]
  std::vector<int64_t> busy_ns;         // by channel: the union of its spans over all runs
  std::vector<Exposed> exposed;         // in the order of the items that waited
  int64_t exposed_ns = 0;               // the idle time that an infinitely fast network removes
  int64_t bubble_ns = 0;         // the idle time that remains with such a network, less the waits for local tasks
  int64_t communication_ns = 0;  // the union over all communication channels

  /// The start of the first spine item of `run + 1` less that of `run`. Both plans must have a spine.
  int64_t step_period_ns(size_t run) const { return runs[run + 1][0].start_ns - runs[run][0].start_ns; }
};

struct Rehearsal {
  bool finished = false;
  std::string deadlock;  // if not finished: the chain of waits, by rank and item
  int64_t makespan_ns = 0;
  std::vector<RankTimes> ranks;  // in the order given; empty if not finished
};

/// Pure. Rehearses finished plans: the order of a channel is the projection of Plan::order.
/// Throws: PlanError if a plan is not finished or a rank is missing. A deadlock is a result, not an error.
Rehearsal rehearse(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks,
                   const Price& price, const RehearseOptions& options = {});

/// Pure. RankTimes::step_period_ns(`run`) of the first rank, without the rest of a rehearsal; -1 if a deadlock prevents
/// it.
/// Throws: as rehearse().
int64_t rehearsed_period_ns(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks,
                            const Price& price, const RehearseOptions& options, size_t run);

}  // namespace slipstream::comm
