// SPDX-License-Identifier: Apache-2.0
#pragma once
// A finished job: the plans of all stages in their global order, their proof, and how steps are launched.

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/rehearse/finish.h"
#include "engine/plan/job.h"

namespace slipstream::planner {

/// Steps in virtual time, each launched as one graph or task by task. A graph is a barrier at the end of a step: what
/// would run under the next one is exposed. Task by task the host launches everything itself, in the time that the
/// machine says for one work; beside a device that computes, mostly in its shadow, but never for nothing.
struct Replay {
  bool taken = false;
  int64_t graph_ns = 0;  // a step; 0: nothing was compared. Each with the place of the update that suits it
  int64_t task_by_task_ns = 0;
  int64_t launches = 0;   // works of a step, of the stage that has most
  int64_t launch_ns = 0;  // of one
  int serialised_by = 0;  // the driver with which NCCL ends one operation of a replayed step before the next begins; 0:
                          // with this one, or one channel, it does not

  /// What the barrier may cost before launching task by task is better.
  int64_t launches_ns() const { return launches * launch_ns; }
  /// A run keeps four graphs of a step, each with a node or two for every launch: millions of nodes are gigabytes that
  /// no plan counts. device.graph = true takes them all the same.
  static constexpr int64_t kMostLaunches = 100'000;
  bool is_too_large() const { return launches > kMostLaunches; }
};

struct FinishedJob {
  std::shared_ptr<const Job> job;  // of the rank that asked
  std::vector<std::shared_ptr<const Job>>
      stages;         // of every pipeline stage, `job` among them; the others as their first rank sees it
  comm::Proof proof;  // of the plans of all stages, in a row as a run has them
  Replay replay;
  int64_t micro_batches = 1;
  int64_t global_batch = 1;  // sequences
  int64_t transfer_ns = 0;   // what crosses between two stages should take
};

}  // namespace slipstream::planner
