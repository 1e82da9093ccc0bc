// SPDX-License-Identifier: Apache-2.0
#pragma once
// Builds a finished job from a run file: the plans of all stages in their global order, with their proof.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/rehearse/finish.h"
#include "comm/rehearse/rehearse.h"
#include "engine/plan/job.h"
#include "trainer/planner/finished_job.h"
#include "trainer/planner/options/job_request.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::planner {

/// Orders the plans of all stages of one job, once. With `proves`, also proves the sequences of Job::calendar(). The
/// proof may fail. Throws: PlanError.
comm::Proof finish_plans(const std::vector<std::shared_ptr<Job>>& stages, const comm::Price& price, bool proves = true);

/// Throws: PlanError with the findings of a failed proof.
void require_holds(const comm::Proof& proof);

/// Builds and finishes the job of one rank and those of the other stages, which must agree with it. If the update may
/// have its own stream, the place with the fastest rehearsed step is chosen. optimizer.double_buffer = "auto" adds two
/// copies of the weights as a place, if they fit. With more than 4096 stages x layers, places are not compared. If
/// steps may be launched as graphs, device.graph = "auto" uses graphs unless the barrier costs more than launching task
/// by task. Pure: equal on all ranks with the same machine. Throws: ConfigError (sizes, layout, batch), PlanError; with
/// `proves` also if the plans do not hold.
FinishedJob build_finished_job(const JobRequest& request);

/// Does the same, but also returns plans that fail their proof, for commands that print the proof and run nothing.
FinishedJob build_proved_job(const JobRequest& request);

/// Returns `request.config` with a number for overlap.bucket_size = "auto": 4, 25, 100 or 400 MiB, not below
/// first_bucket_size, the first one with the shortest rehearsed step. If no buckets travel (one data rank, ZeRO-2 and
/// 3, other ways to reduce), it is 25 MiB. The result is equal on all ranks with the same machine. Pure.
ResolvedConfig with_bucket_size(const JobRequest& request);

/// Returns the job with the update at a given place, without a proof. It serves to compare places. Pure.
FinishedJob build_job_with_update(const JobRequest& request, const UpdatePlacement& update);

/// The job with the update on the compute stream, without a proof, unless it needs more than the machine's memory.
struct TriedJob {
  int64_t memory_bytes = 0;  // for the largest stage, with JobRequest::extra_bytes
  FinishedJob finished;      // no stages: the job does not fit
};
/// Pure.
TriedJob try_job(const JobRequest& request);

/// Returns the choices with the shortest rehearsed step, unless `request.schedule` has them:
///   more micro-batches in flight   1f1b and zb_h1 with overlap.p2p, if the memory suffices. They help where transfers
///                                  take long, and where stages differ
///   lags of weight gradients       zb_h1; the candidates do not depend on the links
///   reductions of whole chunks     on stages that end early, without ZeRO
/// So faster links and more memory never make a longer step. The published schedule wins over equally long steps. With
/// more than 4096 stages x layers, only the schedule is played, without the gradients. The result is equal on all
/// ranks with the same machine. Pure.
ScheduleChoice choose_schedule(const JobRequest& request);

/// Returns jobs without plan order. Their memory is known. Pure.
FinishedJob build_drafted_job(const JobRequest& request);

/// Returns the pipeline stage with the largest memory, or the first of equal stages. Pure.
const Job& largest_stage(const FinishedJob& finished);

/// Returns the memory that its ranks need. Pure.
int64_t most_bytes(const FinishedJob& finished);

/// Plays the schedule in virtual time with the modelled durations of every stage's pieces and of transfers between
/// stages. Pure.
Played played_schedule(const std::vector<std::shared_ptr<const Job>>& stages, const comm::RooflinePrice& price,
                       int64_t transfer_ns);

/// Returns the runs of the first `steps` steps on all stages, ready for a rehearsal. `asks` tells whether the run asks
/// for plans of this kind beside the step that follows so many steps. Pure.
std::vector<comm::RankRuns> runs_of(
    const std::vector<std::shared_ptr<const Job>>& stages, int64_t steps,
    const std::function<bool(PlanKind kind, int64_t n)>& asks = [](PlanKind, int64_t) { return false; });

/// Returns the step period in virtual time at the machine's prices: from a step's first work to the next step's. It is
/// negative if the rehearsal deadlocks. Pure.
int64_t step_period_ns(const JobRequest& request, const FinishedJob& finished, bool replayed);
/// Does the same with the runs_of() three steps, which do not depend on prices.
int64_t step_period_ns(const JobRequest& request, const FinishedJob& finished, const std::vector<comm::RankRuns>& runs,
                       bool replayed);

/// Returns the step period of the training plans in virtual time, `replayed` as a graph or not. Every local item of
/// stage s takes item_ns[s][i] (negative: the time of `otherwise`), and communication takes the time of `otherwise`.
/// The result is negative if the rehearsal deadlocks. Pure.
double rehearsed_step_ms(const std::vector<std::shared_ptr<const Job>>& stages,
                         const std::vector<std::vector<int64_t>>& item_ns, const comm::Price& otherwise,
                         bool replayed = false);

}  // namespace slipstream::planner
