// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs plans of all ranks in virtual time: start and end of every item, what is exposed, and deadlocks by name.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/rehearse/price.h"
#include "engine/plan/plan.h"

namespace slipstream::comm {

/// What the device adds to the plan's own waits between communication tasks, in host order.
enum class Gate : uint8_t {
  none,          // channels are independent
  launch_order,  // one enters only after every one issued before it on its rank has entered
  serial,        // one enters only after the one issued before it on its rank has ended
};
const char* name_of(Gate gate);

/// The wire that a channel uses. Two channels that differ only in a trailing "_in" or "_out" are the two ends of one: a
/// send on "pipe_fwd_out" meets the recv on its peer's "pipe_fwd_in". Pure.
std::string wire_name(const Channel& channel);

/// What one rank runs in a row. `seams` may be shorter than `runs`; SeamWait::run indexes `runs`.
struct RankRuns {
  int rank = 0;
  std::vector<const Plan*> runs;
  std::vector<std::vector<SeamWait>> seams;
};

struct RehearseOptions {
  Gate gate = Gate::none;
  /// Ranks that differ only in axes other than pipeline do the same at the same time: one representative stands for
  /// them, alone in its groups; it still pays for the whole group. Otherwise all ranks of the mesh must be given.
  bool collapse = true;
  bool contention = true;  // transfers in flight on a port share it
  bool replayed = false;   // a device launches every run as one graph, which is a barrier: nothing of a run begins
                           // before all of the last one has ended
};

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
  int64_t bubble_ns = 0;         // idle time that remains with one, less waits for local tasks: it depends on no link
  int64_t communication_ns = 0;  // union over all communication channels

  /// Start of run + 1's first spine item less that of run's. Both plans must have a spine.
  int64_t step_period_ns(size_t run) const { return runs[run + 1][0].start_ns - runs[run][0].start_ns; }
};

struct Rehearsal {
  bool finished = false;
  std::string deadlock;  // if not finished: who waits for whom, by rank and item
  int64_t makespan_ns = 0;
  std::vector<RankTimes> ranks;  // as given; empty if not finished
};

/// Rehearses. Plans must be finished: the order of a channel is the projection of Plan::order. Pure.
/// Throws: PlanError if a plan is not finished or a rank is missing. A deadlock is an answer, not an error.
Rehearsal rehearse(const Mesh& mesh, const std::vector<Channel>& channels, std::span<const RankRuns> ranks,
                   const Price& price, const RehearseOptions& options = {});

}  // namespace slipstream::comm
