// SPDX-License-Identifier: Apache-2.0
#pragma once
// A finished job: the plans of all stages in their global order, their proof, and how steps are launched.

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/rehearse/finish.h"
#include "engine/plan/job.h"
#include "trainer/planner/options/engines.h"
#include "trainer/planner/options/job_request.h"

namespace slipstream::planner {

/// Rehearsed steps, launched either as one graph or task by task. A graph is a barrier at the end of a step and exposes
/// communication that would run during the next step. Task by task, the host launches every work in the machine file's
/// launch time. Most launches overlap with compute on the device.
struct Replay {
  bool taken = false;
  int64_t graph_ns = 0;  // of a step; 0: nothing was compared; each time is that with the fastest place of the update
  int64_t task_by_task_ns = 0;
  int64_t launches = 0;   // the works of a step on the stage with the most launches
  int64_t launch_ns = 0;  // of one launch
  /// The driver version that makes NCCL run the operations of a replayed step one by one; 0: there is no such driver,
  /// or only one channel.
  int serialised_by = 0;

  /// Returns the largest cost of the barrier at which a graph is still better than launching task by task.
  int64_t launches_ns() const { return launches * launch_ns; }
  /// A run keeps four graphs of a step, each with one or two nodes per launch. Millions of nodes take gigabytes that no
  /// plan counts, so "auto" launches task by task above this number. device.graph = true uses graphs in any case.
  static constexpr int64_t kMostLaunches = 100'000;
  bool is_too_large() const { return launches > kMostLaunches; }
};

/// A place of the update that was compared, and the rehearsed step there.
struct ComparedUpdate {
  bool beside = false, double_buffer = false;  // see UpdatePlacement
  int64_t memory_bytes = 0;                    // of the stage with the largest memory
  int64_t graph_ns = -1, task_by_task_ns = -1;
};

struct FinishedJob {
  std::shared_ptr<const Job> job;  // of the requesting rank
  std::vector<std::shared_ptr<const Job>>
      stages;         // of every pipeline stage, including `job`; the other jobs are those of their first rank
  comm::Proof proof;  // of the plans of all stages, in the order of a run
  Replay replay;
  std::vector<ComparedUpdate> compared;  // on GPUs only
  Engines engines;
  int64_t micro_batches = 1;
  int64_t global_batch = 1;  // sequences
  int64_t transfer_ns = 0;   // the modelled time of a transfer between two stages
  ScheduleChoice schedule;   // the choice in the plan
};

}  // namespace slipstream::planner
