// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a checkpoint costs: bytes on disk, host memory of its snapshot, the time that copying it adds to a step, and the
// time of writing it at checkpoint.bandwidth.

#include <cstdint>
#include <optional>
#include <string>

#include "comm/rehearse/price.h"
#include "engine/config/config.h"
#include "trainer/planner/finished_job.h"

namespace slipstream::planner {

struct CheckpointCosts {
  int64_t disk_bytes = 0;  // of the tensors
  // The snapshot; 0 without one (PlanOptions::snapshots).
  int64_t rank_bytes = 0;           // of the largest rank
  int64_t host_bytes = 0;           // of all ranks of the host with the most
  std::optional<int64_t> added_ns;  // to the step beside which it is copied; none without a snapshot or a rehearsal
  int64_t writer_ns = 0;  // that its writer takes from compute if the ranks' threads fill the cores; 0 beside a GPU
  std::optional<double> write_seconds;  // of the largest rank at checkpoint.bandwidth; none without a limit
};

/// What kept snapshots cost (checkpoint.peer_interval).
struct KeepingCosts {
  int64_t interval = 0;             // 0: none are kept
  int to_holder = 0;                // as Keeping::to_holder
  bool holder_is_elsewhere = true;  // every rank's holder is on another host
  int64_t rank_bytes = 0;           // of host memory: all slots, this rank's and those that it holds
  int64_t host_bytes = 0;           // of all ranks of the host with the most
  int64_t sent_bytes = 0;           // by a rank, for one snapshot
  std::optional<int64_t> added_ns;  // to each step that a snapshot travels beside; none without a rehearsal
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

/// "every step, 744.0 MiB to rank r + 1; 4.36 GiB of host memory per rank (8.72 GiB per host); adds 0.3 ms to a step".
/// Pure.
std::string text_of(const KeepingCosts& costs);

/// As checkpoint_costs(), for snapshots every `interval` steps. Pure.
KeepingCosts keeping_costs(const FinishedJob& finished, int64_t interval, int64_t ranks_per_node,
                           const comm::Price& price);

}  // namespace slipstream::planner
