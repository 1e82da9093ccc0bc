// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inputs of a plan: a resolved configuration, a rank of its world, and the machine.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/nccl/nccl_table.h"
#include "engine/config/machine.h"
#include "engine/config/resolve.h"
#include "engine/plan/job.h"

namespace slipstream::planner {

/// Properties of a pipeline schedule that the rehearsal chooses (choose_schedule in trainer/planner/planner.h).
struct ScheduleChoice {
  bool more_in_flight = false;  // ScheduleShape::hides_transfers
  std::vector<int> lags = {};   // ScheduleShape::lags
  bool reduces_at_once = true;  // stages that end early reduce whole chunks; false: every stage has buckets
};

struct JobRequest {
  ResolvedConfig config;
  int rank = 0;
  Machine machine;
  /// The oldest driver of all ranks, because old drivers serialize NCCL's operations (comm/nccl/launch_order.h); 0:
  /// unknown.
  int driver = 0;
  comm::NcclTable nccl;  // the table of comm.nccl, if the run is on GPUs
  int nccl_version = 0;  // the version of the run's NCCL, as NCCL numbers it; 0: unknown, taken as current
  bool proves = true;    // false: the plan is only compared
  std::optional<ScheduleChoice> schedule;          // empty: choose_schedule() chooses
  std::function<int64_t(const Job&)> extra_bytes;  // the memory of a rank outside of its plan; empty: none
  std::function<std::vector<int64_t>(const Job&)>
      spine_ns;  // the durations of the training's spine items; empty: modelled from the machine
};

}  // namespace slipstream::planner
