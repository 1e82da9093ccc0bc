// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cost of a checkpoint: bytes on disk, host memory of its snapshot, the time that copying it adds to a step, and
// the time of writing it at checkpoint.bandwidth.

#include <cstdint>
#include <optional>
#include <string>

#include "comm/rehearse/price.h"
#include "engine/config/config.h"
#include "trainer/planner/finished_job.h"

namespace slipstream::planner {

struct CheckpointCosts {
  int64_t disk_bytes = 0;  // for the tensors
  // The snapshot; 0 without one (PlanOptions::snapshots).
  int64_t rank_bytes = 0;  // for the largest rank
  int64_t host_bytes = 0;  // for all ranks of the host with the most
  /// The time added to the step beside which it is copied; none without a snapshot or a rehearsal.
  std::optional<int64_t> added_ns;
  /// The time that its writer takes from compute if the ranks' threads fill the cores; 0 beside a GPU.
  int64_t writer_ns = 0;
  std::optional<double> write_seconds;  // for the largest rank at checkpoint.bandwidth; none without a limit
};

/// The cost of kept snapshots (checkpoint.peer_interval).
struct KeepingCosts {
  int64_t interval = 0;             // 0: none are kept
  int to_holder = 0;                // see Keeping::to_holder
  bool holder_is_elsewhere = true;  // every rank's holder is on another host
  int64_t rank_bytes = 0;           // host memory for all slots of this rank and for those that it holds
  int64_t host_bytes = 0;           // for all ranks of the host with the most
  int64_t sent_bytes = 0;           // what a rank sends for one snapshot
  /// The time added to each step beside which a snapshot travels; none without a rehearsal.
  std::optional<int64_t> added_ns;
};

/// Returns "1.50 GiB on disk, 497.0 MiB of host memory per rank (3.88 GiB per host); copying it adds 0.0 ms to a step;
/// writing it takes 9.9 s at checkpoint.bandwidth". Pure.
std::string text_of(const CheckpointCosts& costs);

/// Hosts have `ranks_per_node` consecutive ranks. Rehearses a run of steps with a snapshot and one without. Pure.
CheckpointCosts checkpoint_costs(const FinishedJob& finished, int64_t ranks_per_node, const comm::Price& price,
                                 const Checkpoint& options);

/// Returns the seconds in which the largest rank writes its snapshot at checkpoint.bandwidth, or none without a limit.
/// Pure.
std::optional<double> write_seconds(const FinishedJob& finished, const Checkpoint& options);

/// Describes the problem of an interval that is shorter than the time of a write; empty: there is none. `step_seconds`
/// is 0 if it is unknown. Pure.
std::string short_interval(const Checkpoint& options, std::optional<double> write_seconds, double step_seconds);

/// Returns "every step, 744.0 MiB to rank r + 1; 4.36 GiB of host memory per rank (8.72 GiB per host); adds 0.3 ms to a
/// step". Pure.
std::string text_of(const KeepingCosts& costs);

/// Does the same as checkpoint_costs() for snapshots every `interval` steps. Pure.
KeepingCosts keeping_costs(const FinishedJob& finished, int64_t interval, int64_t ranks_per_node,
                           const comm::Price& price);

}  // namespace slipstream::planner
