// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a run file says, in the words of the models, the planner and the rehearsal.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/rehearse/price.h"
#include "engine/config/config.h"
#include "engine/config/machine.h"
#include "engine/plan/job.h"
#include "models/model.h"
#include "planner/job_request.h"

namespace slipstream::planner {

/// The vocabulary that a plan needs: the run file's, else the tokenizer's; only chars and token shards must read the
/// data for it. Blocks.
/// Throws: DataError.
int64_t vocab_of(const RunConfig& config);

/// Blocks. Throws: ConfigError unless the axes multiply to `world` ranks, with the layouts of them that every law of
/// the run file allows, those of the schedule and of its file among them.
void require_layout(const RunConfig& config, int world);

/// Sizes of the model on one rank; how its layers are dealt to stages is not in it. Pure. Throws: ConfigError.
models::ModelOptions model_options(const JobRequest& request);

/// The planner's options; the schedule and the dealing of layers are not in it. Pure. Throws: ConfigError.
PlanOptions plan_options(const JobRequest& request);

/// How a model is dealt to stages, from what its pieces cost at the machine's rates.
struct LayerPartition {
  std::vector<int> layers;       // of each part: as the run file says, else balanced
  bool hides_transfers = false;  // a hop takes long enough to be worth one more micro-batch alive per stage
  int64_t transfer_ns = 0;
};
LayerPartition partition_layers(const JobRequest& request, const models::ModelOptions& sizes, const Mesh& mesh);

/// pipeline.schedule, or pipeline.schedule_file. Blocks. Throws: ConfigError, PlanError.
PipelineSchedule schedule_of(const RunConfig& config, int micro_batches, bool hides_transfers);
/// What pipeline.schedule is called where it is printed: the file's name, or the schedule's. Pure.
std::string schedule_name(const RunConfig& config);

/// What the machine and the run file's emulated link cost in virtual time.
comm::RooflinePrice price_of(const RunConfig& config, const Machine& machine, const Mesh& mesh);

/// device.machine of the run file or `path`, else this host; `threads` of the compute stream, `ranks_on_host` as
/// this_host() takes them.
Machine machine_of(const RunConfig& config, const std::string& path, int threads, int ranks_on_host = 0);

/// Threads of the compute stream: device.threads, or cores of the affinity mask / ranks that share it, at least 1.
int threads_of(const RunConfig& config, int ranks_on_host);
/// What is wrong with device.threads on the cores that this process may run on; empty: nothing. Reads the affinity.
std::string remark_on_threads(const RunConfig& config);

}  // namespace slipstream::planner
