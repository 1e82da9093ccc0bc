// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a run file to a finished job: the plans of all stages, in their global order, proved.

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/rehearse/rehearse.h"
#include "engine/plan/job.h"
#include "planner/finished_job.h"
#include "planner/job_request.h"

namespace slipstream::planner {

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
                       int64_t transfer_ns);

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

}  // namespace slipstream::planner
