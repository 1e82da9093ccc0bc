// SPDX-License-Identifier: Apache-2.0
#pragma once
// Translates a run file into the options of the models, the planner and the rehearsal.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/rehearse/price.h"
#include "engine/config/machine.h"
#include "engine/config/resolve.h"
#include "engine/data/datasets/dataset.h"
#include "engine/plan/job.h"
#include "models/model.h"
#include "trainer/planner/options/job_request.h"

namespace slipstream::planner {

/// The data of a run. `threads`: that encode JSON lines. Pure.
data::DatasetOptions dataset_options(const RunConfig& config, data::ShardCheck check, int threads = 1);

/// Blocks. The vocabulary that a plan needs: the run file's, else the tokenizer's; only chars and token shards read the
/// data. Throws: DataError.
int64_t vocab_of(const RunConfig& config);

/// Blocks. Throws: ConfigError unless the axes multiply to `world` ranks, with the legal layouts, including the rules
/// of the schedule and its file. Commands call it before they read the data; resolve() needs the data's vocabulary.
void require_layout(const RunConfig& config, int world);

/// Sizes of the model on one rank, without the partition of layers. Pure. Throws: ConfigError.
models::ModelOptions model_options(const JobRequest& request);

/// The place and the target of the update: build_finished_job() chooses them.
struct UpdatePlacement {
  bool beside = false;         // on its own stream, which takes nothing from the compute stream
  bool double_buffer = false;  // into a second copy of the weights
};

/// overlap.bucket_size; of "auto", the default until planner/bucket_size.h chooses. Pure.
int64_t bucket_bytes_of(const RunConfig& config);

/// The planner's options, without the schedule and the partition of layers. Pure.
PlanOptions plan_options(const JobRequest& request, const UpdatePlacement& update = {});

/// The partition of a model's layers among stages, by the costs of its pieces at the machine's rates.
struct LayerPartition {
  std::vector<int> layers;  // of each part: from the run file, else balanced
  int64_t transfer_ns = 0;
};
LayerPartition partition_layers(const JobRequest& request, const models::ModelOptions& sizes, const Mesh& mesh);

/// pipeline.schedule, or pipeline.schedule_file. Blocks. Throws: ConfigError, PlanError.
PipelineSchedule schedule_of(const ResolvedConfig& config, const ScheduleChoice& choice);
/// Where that schedule has the parts of the model, unless it is from a file. Pure.
StagePlacement stage_placement(const RunConfig& config);
/// The printed name of the schedule: the schedule's name, or its file's name. Pure.
std::string schedule_name(const RunConfig& config);

/// Prices of the machine and of the run file's emulated link in virtual time.
comm::RooflinePrice price_of(const RunConfig& config, const Machine& machine, const Mesh& mesh);

/// The machine file at `path` or device.machine, else this host. `threads`: of the compute stream; `ranks_on_host`: as
/// in this_host().
Machine machine_of(const RunConfig& config, const std::string& path, int threads, int ranks_on_host = 0);

/// Throws: ConfigError if `world` ranks exceed the nodes of a machine file.
void require_nodes(const Machine& machine, int64_t world);

/// device.kind = "cuda" or comm.backend = "nccl"; if both are "auto", the device that the machine file declares. Pure.
bool computes_on_gpus(const RunConfig& config, const Machine& machine);

/// Threads of the compute stream: device.threads, or cores of the affinity mask / ranks that share it, at least 1.
int threads_of(const RunConfig& config, int ranks_on_host);
/// The problem of device.threads with this process's cores; empty: none. Reads the affinity mask.
std::string remark_on_threads(const RunConfig& config);

/// The placement of the parameters on a mesh of this run. Pure.
Placement placement_of(const RunConfig& run, const Mesh& mesh);

/// "parallel.data=-1" and "parallel.NAME=1" for the other axes: the data axis takes all ranks. Pure.
std::vector<std::string> sets_of_plain_axes();

}  // namespace slipstream::planner
