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

/// The plan of one pipeline stage. Borrows; `buffers` names hazards and may be null.
struct Stage {
  Plan* plan = nullptr;
  const Buffers* buffers = nullptr;
};

/// Sequences of consecutive runs of one pipeline stage: finished plans, equally many on all stages. Borrows, as Stage.
struct StageRuns {
  std::vector<std::vector<const Plan*>> sequences;
  const Buffers* buffers = nullptr;
};

struct Proof {
  std::string deadlock;         // empty: none under any gate, with all runs in a row and their seam waits
  std::vector<Hazard> hazards;  // of all runs in a row on all stages; if none, implicit orders
  int64_t hazard_count = 0;
  int64_t items = 0;         // of all stages, each plan once
  int64_t waits = 0;         // left in the plans
  int64_t pruned_count = 0;  // dropped because others imply them
  int64_t seam_waits = 0;    // of the last run that follows two of its kind, all stages
  uint64_t order_hash = 0;   // of host order, names, channels and sizes of all plans of all stages; equal on all ranks

  ReductionReport reductions;  // of whole jobs; finish() and prove() see only plans

  bool holds() const { return deadlock.empty() && hazard_count == 0 && reductions.found.empty(); }
  /// Adds the result of finish() for one plan with Checks::orders. A completely unordered access appears in that result
  /// and, with its suggested wait, in a proof of runs; implicit orders therefore count only if no other hazards exist.
  void include(Proof finished);
};

/// Checks of finish() in addition to the order.
enum class Checks : uint8_t {
  none,    // for plans that are compared and never run
  orders,  // implicit orders; prove() checks the rest, over several plans
  all,     // and prove() of three runs: one has no wait between runs, two have no steady state
};

/// Turns each Task::before into a wait of that item, orders all items, drops implied waits, and proves the result.
///
/// One plan per pipeline stage, finished together because their sends and receives must agree. The order: rehearse with
/// unlimited channels, sort each channel by (start, RendezvousKey), rehearse with those channels, sort the host order
/// the same way. Starts strictly increase along every wait and channel, and the key is equal on all members of a
/// rendezvous, so the rehearsal is itself a schedule that satisfies every launch gate: no gate can deadlock, at any
/// real speed. Append order matters only as the sequence that matches the tasks of one channel and group across ranks.
/// Writes Plan::order and Item::after.
/// Throws: PlanError naming the cycle if waits contradict each other, or if the groups' tasks cannot be matched.
/// The proof contains the results of `checks` and the number of dropped waits.
Proof finish(std::span<const Stage> stages, const Mesh& mesh, const std::vector<Channel>& channels, const Price& price,
             Checks checks = Checks::all);

/// True if plans without an order may have one: no task waits for itself by way of waits, local channels and
/// rendezvous. Turns each Task::before into a wait, as finish(). Throws: PlanError if a plan names what does not exist.
bool can_end(std::span<const Stage> stages, const Mesh& mesh, const std::vector<Channel>& channels, const Price& price);

/// Proves sequences of finished plans: deadlocks under any gate, and hazards. Changes nothing.
Proof prove(std::span<const StageRuns> stages, const Mesh& mesh, const std::vector<Channel>& channels,
            const Price& price);

/// Pure. Hash of the values on which ranks must agree before the first step.
uint64_t order_hash(std::span<const Plan* const> plans);

/// Drops waits that channel order and other waits imply; `plan` must be finished. Returns their number.
int64_t prune(Plan& plan, size_t channel_count);

}  // namespace slipstream::comm
