// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a checkpoint costs: bytes on disk, host memory of its snapshot, the time that copying it adds to a step, and the
// time of writing it at checkpoint.bandwidth.

#include <cstdint>
#include <optional>
#include <string>

#include "comm/rehearse/price.h"
#include "engine/config/config.h"
#include "planner/finished_job.h"

namespace slipstream::planner {

struct CheckpointCosts {
  int64_t disk_bytes = 0;  // of the tensors
  // Of the snapshot; 0 without one (PlanOptions::snapshots).
  int64_t rank_bytes = 0;           // of the largest rank
  int64_t host_bytes = 0;           // of all ranks of the host with the most
  std::optional<int64_t> added_ns;  // to the step beside which it is copied; none without a snapshot or a rehearsal. On
                                    // a CPU without the core that the copying thread may take from compute
  std::optional<double> write_seconds;  // of the largest rank at checkpoint.bandwidth; none without a limit
};

/// "1.50 GiB on disk, 497.0 MiB of host memory per rank (3.88 GiB per host); copying it adds 0.0 ms to a step; writing
/// it takes 9.9 s at checkpoint.bandwidth". Pure.
std::string text_of(const CheckpointCosts& costs);

/// Hosts have `ranks_per_node` consecutive ranks. Rehearses a run of steps with a snapshot and one without. Pure.
CheckpointCosts checkpoint_costs(const FinishedJob& finished, int64_t ranks_per_node, const comm::Price& price,
                                 const Checkpoint& options);

/// Seconds in which the largest rank writes its snapshot at checkpoint.bandwidth; none without a limit. Pure.
std::optional<double> write_seconds(const FinishedJob& finished, const Checkpoint& options);

/// The problem of an interval shorter than the time of a write; empty: none. `step_seconds`: 0 if it is unknown. Pure.
std::string short_interval(const Checkpoint& options, std::optional<double> write_seconds, double step_seconds);

}  // namespace slipstream::planner
