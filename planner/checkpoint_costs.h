// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a checkpoint costs: bytes on disk, host memory of its snapshot, and the time that copying it adds to a step.

#include <cstdint>
#include <optional>
#include <string>

#include "comm/rehearse/price.h"
#include "planner/finished_job.h"

namespace slipstream::planner {

struct CheckpointCosts {
  int64_t disk_bytes = 0;  // of the tensors
  // Of the snapshot; 0 without one (PlanOptions::snapshots).
  int64_t rank_bytes = 0;           // of the largest rank
  int64_t host_bytes = 0;           // of all ranks of the host with the most
  std::optional<int64_t> added_ns;  // to the step beside which it is copied; none without a snapshot or a rehearsal. On
                                    // a CPU without the core that the copying thread may take from compute
};

/// "1.50 GiB on disk, 497.0 MiB of host memory per rank (3.88 GiB per host); copying it adds 0.0 ms to a step". Pure.
std::string text_of(const CheckpointCosts& costs);

/// Hosts have `ranks_per_node` consecutive ranks. Rehearses a run of steps with a snapshot and one without. Pure.
CheckpointCosts checkpoint_costs(const FinishedJob& finished, int64_t ranks_per_node, const comm::Price& price);

}  // namespace slipstream::planner
