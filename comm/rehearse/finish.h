// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gives plans their one global order, prunes their waits and proves them.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/rehearse/hazards.h"
#include "comm/rehearse/price.h"
#include "comm/rehearse/reductions.h"
#include "comm/rehearse/rehearse.h"
#include "engine/plan/plan.h"

namespace slipstream::comm {

/// The plan of one pipeline stage. Borrows it. `buffers` names the memory in hazards, and may be null.
struct Stage {
  Plan* plan = nullptr;
  const Buffers* buffers = nullptr;
};

/// Sequences of consecutive runs of one pipeline stage. The plans are finished, and all stages have equally many.
/// Borrows, as Stage.
struct StageRuns {
  std::vector<std::vector<const Plan*>> sequences;
  const Buffers* buffers = nullptr;
};

struct Proof {
  std::string deadlock;         // empty: no gate leads to one, for all runs in a row with their seam waits
  std::vector<Hazard> hazards;  // of all runs in a row on all stages; if there are none, implicit orders
  int64_t hazard_count = 0;
  int64_t items = 0;         // the items of all stages, with each plan counted once
  int64_t waits = 0;         // waits that remain in the plans
  int64_t pruned_count = 0;  // waits that were dropped because others imply them
  int64_t seam_waits = 0;    // of the last run that follows two runs of its kind, on all stages
  uint64_t order_hash = 0;   // of host order, names, channels and sizes of all plans of all stages; equal on all ranks

  ReductionReport reductions;  // of whole jobs; finish() and prove() see only plans

  bool holds() const { return deadlock.empty() && hazard_count == 0 && reductions.found.empty(); }
  /// Adds the result of finish() for one plan with Checks::orders. An access that nothing orders appears in that
  /// result, and also in a proof of runs, where it comes with a suggested wait. Implicit orders therefore count only if
  /// no other hazards exist.
  void include(Proof finished);
};

/// The checks of finish() in addition to the order.
enum class Checks : uint8_t {
  none,    // for plans that are compared and never run
  orders,  // implicit orders; prove() checks the rest, over several plans
  all,     // orders, and prove() of three runs: one has no wait between runs, and two have no steady state
};

/// Turns each Task::before into a wait of that item, orders all items, drops implied waits, and proves the result.
///
/// There is one plan per pipeline stage. They are finished together, because their sends and receives must agree. The
/// order is found in four steps: rehearse with unlimited channels, sort each channel by (start, RendezvousKey),
/// rehearse with those channels, and sort the host order the same way. Starts strictly increase along every wait and
/// channel, and the key is equal on all members of a rendezvous. The rehearsal is therefore itself a schedule that
/// satisfies every launch gate, so no gate can deadlock, at any real speed. The order in which tasks were appended
/// matters only for matching the tasks of one channel and group across ranks.
/// Writes Plan::order and Item::after.
/// Throws: PlanError that names the cycle if waits contradict each other, or if the tasks of the groups cannot be
/// matched.
/// Returns a proof with the results of `checks` and the number of dropped waits.
Proof finish(std::span<const Stage> stages, const Mesh& mesh, const std::vector<Channel>& channels, const Price& price,
             Checks checks = Checks::all);

/// True if plans without an order may have one, because no task waits for itself by way of waits, local channels and
/// rendezvous. Turns each Task::before into a wait, as finish() does. Throws: PlanError if a plan names something that
/// does not exist.
bool can_end(std::span<const Stage> stages, const Mesh& mesh, const std::vector<Channel>& channels, const Price& price);

/// Proves sequences of finished plans: deadlocks under any gate, and hazards. Changes nothing.
Proof prove(std::span<const StageRuns> stages, const Mesh& mesh, const std::vector<Channel>& channels,
            const Price& price);

/// Pure. A hash of the values on which ranks must agree before the first step.
uint64_t order_hash(std::span<const Plan* const> plans);

/// Drops the waits that channel order and other waits imply. `plan` must be finished. Returns the number of dropped
/// waits.
int64_t prune(Plan& plan, size_t channel_count);

}  // namespace slipstream::comm
