// SPDX-License-Identifier: Apache-2.0
#pragma once
// The input of a rehearsal: the plans that ranks run in a row, and how a device launches them.

#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"

namespace slipstream::comm {

/// The order that the device adds between communication tasks, in host order, beside the plan's own waits.
enum class Gate : uint8_t {
  none,  // channels are independent
  // The next two concern all channels but those between hosts:
  launch_order,  // a task enters only after every task issued before it on its rank has entered
  serial,        // a task enters only after the task issued before it on its rank has ended
};
const char* name_of(Gate gate);

/// The runs of one rank in a row. `seams` may be shorter than `runs`; SeamWait::run indexes `runs`.
struct RankRuns {
  int rank = 0;
  std::vector<const Plan*> runs;
  std::vector<std::vector<SeamWait>> seams;
};

struct RehearseOptions {
  Gate gate = Gate::none;
  /// Ranks that differ only in axes other than pipeline do the same at the same time. One representative replaces them:
  /// it is alone in its groups, but pays for the whole group. If false, all ranks of the mesh must be given.
  bool collapse = true;
  bool contention = true;        // transfers in flight on a port share it
  bool slows_local_work = true;  // transfers on multiprocessors slow it (Price::multiprocessors); needs contention
  bool splits_idle = true;  // false: RankTimes has no exposed and no bubble time, for which another rehearsal is needed
  bool replayed = false;  // a device launches every run with a spine as one graph, which is a barrier: nothing of a run
                          // begins before all of the last one has ended
};

}  // namespace slipstream::comm
