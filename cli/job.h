// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a run file to a finished job: the options of the model and of the planner, and the plans in their global order.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/rehearse/finish.h"
#include "comm/rehearse/price.h"
#include "comm/rehearse/rehearse.h"
#include "engine/config/config.h"
#include "engine/config/machine.h"
#include "engine/plan/job.h"
#include "models/model.h"

namespace slipstream::cli {

struct JobRequest {
  RunConfig config;
  int world = 1;
  int rank = 0;
  int64_t vocab = 0;  // of the tokenizer; the model's when model.vocab_size is 0
  Machine machine;
  /// The update may have a stream of its own, which takes nothing from the compute stream; a step may be launched as one graph; collectives are NCCL's.
  bool on_gpus = false;
  int driver = 0;              // the oldest of all ranks: older ones serialise NCCL's operations (comm/nccl/launch_order.h); 0: not known
  bool update_beside = false;  // build_finished_job() says
  bool proves = true;          // false: a plan that is only compared
  std::function<int64_t(const Job&)> beside_bytes;  // memory that a rank takes beside its plan; empty: none
  std::function<std::vector<int64_t>(const Job&)> spine_ns;  // what spine items of training take; empty: what the machine says
};

/// Steps in virtual time, each launched as one graph or task by task. A graph is a barrier at the end of a step: what would run under the next one is
/// exposed. Task by task the host launches everything itself, in the time that the machine says for one work; beside a device that computes, mostly in
/// its shadow, but never for nothing.
struct Replay {
  bool taken = false;
  int64_t graph_ns = 0;  // a step; 0: nothing was compared. Each with the place of the update that suits it
  int64_t task_by_task_ns = 0;
  int64_t launches = 0;  // works of a step, of the stage that has most
  int64_t launch_ns = 0; // of one
  int serialised_by = 0; // the driver with which NCCL ends one operation of a replayed step before the next begins; 0: with this one, or one channel, it does not

  /// What the barrier may cost before launching task by task is better.
  int64_t launches_ns() const { return launches * launch_ns; }
};

struct FinishedJob {
  std::shared_ptr<const Job> job;  // of the rank that asked
  std::vector<std::shared_ptr<const Job>> stages;  // of every pipeline stage, `job` among them; the others as their first rank sees it
  comm::Proof proof;      // of the plans of all stages, in a row as a run has them
  Replay replay;
  int64_t micro_batches = 1;
  int64_t global_batch = 1;  // sequences
};

/// The vocabulary that a plan needs: the run file's, else the tokenizer's; only chars and token shards must read the data for it. Blocks.
/// Throws: DataError.
int64_t vocab_of(const RunConfig& config);

models::ModelOptions model_options(const JobRequest& request);

/// What the machine and the run file's emulated link cost in virtual time.
comm::RooflinePrice price_of(const RunConfig& config, const Machine& machine, const Mesh& mesh);

/// Builds and finishes the job of one rank, and those of the other stages, which must agree with it. Where the update may have a stream of its
/// own it has the place whose step rehearses shortest; with optimizer.double_buffer = "auto" two copies of the weights are such a place, if they fit. Where steps
/// may be launched as graphs, they are with device.graph = "auto" unless the barrier costs more than launching task by task. Pure: the same on all ranks that
/// name the same machine.
/// Throws: ConfigError (sizes, layout, batch), PlanError; with `proves` also if the plans do not hold.
FinishedJob build_finished_job(const JobRequest& request);

/// The same, but plans that do not hold are an answer: for those who print the proof and run nothing.
FinishedJob build_proved_job(const JobRequest& request);

/// Gives the plans of one job, of all its stages, their order. With `proves`: and proves the first batch, steps and evaluations in a row; the proof may
/// not hold. Throws: PlanError.
comm::Proof finish_plans(const std::vector<std::shared_ptr<Job>>& stages, const comm::Price& price, bool proves = true);

/// Throws: PlanError with what the proof found, if it does not hold.
void require_holds(const comm::Proof& proof);

/// The pipeline stage whose ranks need most memory; the first of equals. Pure.
const Job& largest_stage(const FinishedJob& finished);

/// Memory that the rank of the stage that gains most would need more without parallel.sequence_parallel; 0 where it is not set. Pure.
int64_t saved_by_sequence_parallelism(const JobRequest& request, const FinishedJob& finished);

/// States of a rank (parameters, gradients, optimizer) as the planner places them, beside the formula of the ZeRO paper
/// (Rajbhandari et al. 2020, figure 1) for the same bytes: of `parameters` each `whole`, and `shared` among the ranks.
struct ZeroMemory {
  int stage = 0;
  int ranks = 0;
  int64_t planned_bytes = 0;  // without slots
  int64_t outside_bytes = 0;  // of these: gradients (stages 2, 3) and parameters (3) outside the layers, in embedding and head, which stay whole
  int64_t formula_bytes = 0;
};

/// Stages 0 to 3 on 2, 4, 8 and 64 data ranks, one row after the other. Pure. Empty when the model does not fit a layout.
std::vector<ZeroMemory> zero_memory(const JobRequest& request);

/// Where the update can run, and what each costs: memory of a rank, and the step in virtual time, where a second stream takes nothing from
/// the first.
struct UpdatePlace {
  std::string name;
  int64_t memory_bytes = 0;  // of the stage that needs most
  double step_ms = 0;
  bool is_planned = false;
};
/// On the compute stream, beside it in place, beside it with two copies of the weights (not with stage 3). `planned` is the job of `request`,
/// whose rehearsed step takes `planned_step_ms`; the others are launched as it is. Pure.
std::vector<UpdatePlace> update_places(const JobRequest& request, const FinishedJob& planned, double planned_step_ms);

/// What the planner has decided that the run file does not say, one line each, for whoever starts the run: where ZeRO-2 accumulates, what buckets
/// are where overlap.bucket_size does not cut, how layers are dealt that do not divide. Pure.
std::vector<std::string> remarks(const RunConfig& config, const Machine& machine, const FinishedJob& finished);

/// Bytes that one rank sends in a step of the training plan for gradients and parameters, and what the theory says of the
/// whole model: per element gradients 2 (stage 0) or 1, parameters 0, 1 or (stage 3) 2 of every micro-batch, x (n-1)/n; with hybrid sharding
/// an all-reduce of the shard across groups besides.
struct WireBytes {
  int64_t sent = 0;
  int64_t theory = 0;
};
WireBytes wire_bytes_of_step(const Job& job);

/// The schedule played with what the pieces of every stage should take. Pure.
Played played_schedule(const std::vector<std::shared_ptr<const Job>>& stages, const comm::RooflinePrice& price);

/// "1f1b over 4 stages of 3 + 3 + 3 + 3 layers, 8 micro-batches: stages idle 37% of a step's compute", and what to do when there are too few. Pure.
std::string schedule_line(const RunConfig& config, const std::vector<std::shared_ptr<const Job>>& stages, const Played& played);

/// Step period of the training plans in virtual time when every local item of stage s takes item_ns[s][i] (negative: as `otherwise`
/// says) and communication takes what `otherwise` says, `replayed` as a graph or not. Pure. Negative if the rehearsal deadlocks.
double rehearsed_step_ms(const std::vector<std::shared_ptr<const Job>>& stages, const std::vector<std::vector<int64_t>>& item_ns,
                         const comm::Price& otherwise, bool replayed = false);

/// The training plans of all stages, `runs` times in a row, ready for a rehearsal. Pure.
std::vector<comm::RankRuns> runs_of(const std::vector<std::shared_ptr<const Job>>& stages, size_t runs);

/// device.machine of the run file or `path`, else this host; `threads` of the compute stream, `ranks_on_host` as this_host() takes them.
Machine machine_of(const RunConfig& config, const std::string& path, int threads, int ranks_on_host = 0);

/// Threads of the compute stream: device.threads, or cores of the affinity mask / ranks that share it, at least 1.
int threads_of(const RunConfig& config, int ranks_on_host);

}  // namespace slipstream::cli
