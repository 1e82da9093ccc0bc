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
  bool update_beside = false;  // the update may have a stream of its own, which takes nothing from the compute stream: a GPU's
  bool proves = true;          // false: a plan that is only compared
  std::function<std::vector<int64_t>(const Job&)> spine_ns;  // what spine items of training take; empty: what the machine says
};

struct FinishedJob {
  std::shared_ptr<const Job> job;  // of the rank that asked
  std::vector<std::shared_ptr<const Job>> stages;  // of every pipeline stage, `job` among them; the others as their first rank sees it
  comm::Proof proof;      // of the training plans
  int64_t micro_batches = 1;
  int64_t global_batch = 1;  // sequences
};

/// The vocabulary that a plan needs: the run file's, else the tokenizer's; only chars must read the data for it. Blocks.
/// Throws: DataError.
int64_t vocab_of(const RunConfig& config);

models::ModelOptions model_options(const JobRequest& request);

/// What the machine and the run file's emulated link cost in virtual time.
comm::RooflinePrice price_of(const RunConfig& config, const Machine& machine, const Mesh& mesh);

/// Builds and finishes the job of one rank, and those of the other stages, which must agree with it. Where the update may have a stream of its
/// own it has the place whose step rehearses shortest; with optimizer.double_buffer = "auto" two copies of the weights are such a place, if they fit. Pure: the
/// same on all ranks that name the same machine.
/// Throws: ConfigError (sizes, layout, batch), PlanError.
FinishedJob build_finished_job(const JobRequest& request);

/// Memory that the rank of the stage that gains most would need more without parallel.sequence_parallel; 0 where it is not set. Pure.
int64_t saved_by_sequence_parallelism(const JobRequest& request, const FinishedJob& finished);

/// States of a rank (parameters, gradients, optimizer) as the planner places them, beside the formula of the ZeRO paper
/// (Rajbhandari et al. 2020, figure 1) for the same bytes: of `parameters` each `whole`, and `shared` among the ranks.
struct ZeroMemory {
  int stage = 0;
  int ranks = 0;
  int64_t planned_bytes = 0;  // without slots; embeddings and head stay whole in every stage
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
/// whose rehearsed step takes `planned_step_ms`. Pure.
std::vector<UpdatePlace> update_places(const JobRequest& request, const FinishedJob& planned, double planned_step_ms);

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
/// says) and communication takes what `otherwise` says. Pure. Negative if the rehearsal deadlocks.
double rehearsed_step_ms(const std::vector<std::shared_ptr<const Job>>& stages, const std::vector<std::vector<int64_t>>& item_ns,
                         const comm::Price& otherwise);

/// The training plans of all stages, `runs` times in a row, ready for a rehearsal. Pure.
std::vector<comm::RankRuns> runs_of(const std::vector<std::shared_ptr<const Job>>& stages, size_t runs);

/// device.machine of the run file or `path`, else this host; `threads` of the compute stream.
Machine machine_of(const RunConfig& config, const std::string& path, int threads);

/// Threads of the compute stream: device.threads, or cores of the affinity mask / ranks that share it, at least 1.
int threads_of(const RunConfig& config, int ranks_on_host);

}  // namespace slipstream::cli
