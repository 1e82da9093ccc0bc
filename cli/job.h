// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a run file to a finished job: the plans of all stages, in their global order, proved.

#include <cstdint>
#include <memory>
#include <vector>

#include "cli/plan_options.h"
#include "comm/rehearse/finish.h"
#include "comm/rehearse/rehearse.h"
#include "engine/plan/job.h"

namespace slipstream::cli {

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
  int64_t hop_ns = 0;        // what crosses between two stages should take
};

/// Builds and finishes the job of one rank, and those of the other stages, which must agree with it. Where the update
/// may have a stream of its own it has the place whose step rehearses shortest; with optimizer.double_buffer = "auto"
/// two copies of the weights are such a place, if they fit. Where steps may be launched as graphs, they are with
/// device.graph = "auto" unless the barrier costs more than launching task by task. Pure: the same on all ranks that
/// name the same machine.
/// Throws: ConfigError (sizes, layout, batch), PlanError; with `proves` also if the plans do not hold.
FinishedJob build_finished_job(const JobRequest& request);

/// The same, but plans that do not hold are an answer: for those who print the proof and run nothing.
FinishedJob build_proved_job(const JobRequest& request);

/// The job with the update where it is told to run, `beside` the compute stream or on it, with one or two copies of the
/// weights: to compare places. Pure.
FinishedJob build_job_with_update(const JobRequest& request, bool beside, bool twice);

/// Jobs whose plans have no order yet: their memory is known. Pure.
FinishedJob build_drafted_job(const JobRequest& request);

/// Gives the plans of one job, of all its stages, their order. With `proves`: and proves the first batch, steps and
/// evaluations in a row; the proof may not hold. Throws: PlanError.
comm::Proof finish_plans(const std::vector<std::shared_ptr<Job>>& stages, const comm::Price& price, bool proves = true);

/// Throws: PlanError with what the proof found, if it does not hold.
void require_holds(const comm::Proof& proof);

/// The pipeline stage whose ranks need most memory; the first of equals. Pure.
const Job& largest_stage(const FinishedJob& finished);

/// Memory that its ranks need. Pure.
int64_t most_bytes(const FinishedJob& finished);

/// The schedule played with what the pieces of every stage and hops between stages should take. Pure.
Played played_schedule(const std::vector<std::shared_ptr<const Job>>& stages, const comm::RooflinePrice& price,
                       int64_t hop_ns);

/// The training plans of all stages, `runs` times in a row, ready for a rehearsal. Pure.
std::vector<comm::RankRuns> runs_of(const std::vector<std::shared_ptr<const Job>>& stages, size_t runs);

/// Steps in a row in virtual time at the machine's prices: from one's first work to the next one's. Pure. Negative: the
/// rehearsal deadlocks.
int64_t step_period_ns(const JobRequest& request, const FinishedJob& finished, bool replayed);

/// Step period of the training plans in virtual time when every local item of stage s takes item_ns[s][i] (negative: as
/// `otherwise` says) and communication takes what `otherwise` says, `replayed` as a graph or not. Pure. Negative if the
/// rehearsal deadlocks.
double rehearsed_step_ms(const std::vector<std::shared_ptr<const Job>>& stages,
                         const std::vector<std::vector<int64_t>>& item_ns, const comm::Price& otherwise,
                         bool replayed = false);

}  // namespace slipstream::cli
