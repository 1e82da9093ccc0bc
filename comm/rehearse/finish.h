// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gives plans their one global order, prunes their waits and proves them.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/rehearse/hazards.h"
#include "comm/rehearse/price.h"
#include "comm/rehearse/rehearse.h"
#include "engine/plan/plan.h"

namespace slipstream::comm {

/// The plan of one pipeline stage. Borrows; `buffers` names hazards and may be null.
struct Stage {
  Plan* plan = nullptr;
  const Buffers* buffers = nullptr;
  const Plan* alternate = nullptr;  // prove(): every other run is of this plan, finished too; null: all are of `plan`
};

struct Proof {
  std::string deadlock;             // empty: none under any gate, three runs in a row with the waits between them
  std::vector<Hazard> hazards;      // of three runs in a row, all stages; if none, orders that no pass has said
  int64_t hazard_count = 0;
  int64_t items = 0;                // of all stages
  int64_t waits = 0;                // left in the plans
  int64_t pruned_count = 0;         // dropped as implied
  int64_t seam_waits = 0;           // of the third run in a row, all stages
  uint64_t order_hash = 0;          // of host order, names, channels and sizes of all stages; equal on all ranks
  int64_t gate_period_ns[3] = {};   // step period under each Gate, third run of the first stage

  bool holds() const { return deadlock.empty() && hazard_count == 0; }
};

/// Turns each Task::before into a wait of that item, orders all items, drops implied waits, and proves the result.
///
/// One plan per pipeline stage, finished together because their sends and receives must agree. The order: rehearse with
/// unlimited channels, sort each channel by (start, MeetingKey), rehearse with those channels, sort the host order the
/// same way. Starts strictly increase along every wait and channel, and the key is equal on all members of a meeting, so
/// the rehearsal is itself a schedule that satisfies every launch gate: no gate can deadlock, at any real speed.
/// Append order matters only as the sequence that matches the tasks of one channel and group across ranks.
/// Writes Plan::order and Item::after. Throws: PlanError naming the cycle if waits contradict each other, or if the
/// groups' tasks cannot be matched.
/// Without `proves` the proof has only the number of waits dropped: for plans that are compared and never run.
Proof finish(std::span<const Stage> stages, const Mesh& mesh, const std::vector<Channel>& channels,
             const Price& price, bool proves = true);

/// The checks of finish() alone, on plans that are already finished. Changes nothing.
Proof prove(std::span<const Stage> stages, const Mesh& mesh, const std::vector<Channel>& channels, const Price& price);

/// Hash of what ranks must agree on before the first step. Pure.
uint64_t order_hash(std::span<const Stage> stages);

/// Drops waits that channel order and other waits imply; `plan` must be finished. Returns how many.
int64_t prune(Plan& plan, size_t channel_count);

}  // namespace slipstream::comm
