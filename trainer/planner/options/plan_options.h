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

/// Returns the data of a run. `threads` threads encode JSON lines. Pure.
data::DatasetOptions dataset_options(const RunConfig& config, data::ShardCheck check, int threads = 1);

/// Blocks. Returns the vocabulary that a plan needs: the run file's, or else the tokenizer's. Only chars and token
/// shards read the data. Throws: DataError.
int64_t vocab_of(const RunConfig& config);

/// Blocks. Throws: ConfigError with the legal layouts unless the axes multiply to `world` ranks; the check includes the
/// rules of the schedule and its file. Commands call this before they read the data, because resolve() needs the data's
/// vocabulary.
void require_layout(const RunConfig& config, int world);

/// Returns the sizes of the model on one rank, without the partition of layers. Pure. Throws: ConfigError.
models::ModelOptions model_options(const JobRequest& request);

/// The place and the target of the update, which build_finished_job() chooses.
struct UpdatePlacement {
  bool beside = false;         // on a stream of its own, which takes nothing from the compute stream
  bool double_buffer = false;  // into a second copy of the weights
};

/// Returns overlap.bucket_size. For "auto", it is the default until planner/bucket_size.h chooses. Pure.
int64_t bucket_bytes_of(const RunConfig& config);

/// Returns the planner's options without the schedule and the partition of layers. Pure.
PlanOptions plan_options(const JobRequest& request, const UpdatePlacement& update = {});

/// The partition of a model's layers among stages, by the costs of its pieces at the machine's rates.
struct LayerPartition {
  std::vector<int> layers;  // of each part: from the run file, or else balanced
  int64_t transfer_ns = 0;
};
LayerPartition partition_layers(const JobRequest& request, const models::ModelOptions& sizes, const Mesh& mesh);

/// Returns the schedule of pipeline.schedule or pipeline.schedule_file. Blocks. Throws: ConfigError, PlanError.
PipelineSchedule schedule_of(const ResolvedConfig& config, const ScheduleChoice& choice);
/// Returns where that schedule has the parts of the model. Blocks and throws as schedule_of() if it is from a file.
StagePlacement stage_placement(const ResolvedConfig& config);
/// Returns the printed name of the schedule: its own name, or that of its file. Pure.
std::string schedule_name(const RunConfig& config);

/// Returns the prices of the machine and of the run file's emulated link in virtual time.
comm::RooflinePrice price_of(const RunConfig& config, const Machine& machine, const Mesh& mesh);

/// Returns the machine file at `path` or device.machine, or else this host. `threads` are those of the compute stream.
/// `ranks_on_host` has the meaning that it has in this_host().
Machine machine_of(const RunConfig& config, const std::string& path, int threads, int ranks_on_host = 0);

/// Throws: ConfigError if `world` ranks exceed the nodes of a machine file.
void require_nodes(const Machine& machine, int64_t world);

/// Returns true for device.kind = "cuda" or comm.backend = "nccl". If both are "auto", the device that the machine file
/// declares decides. Pure.
bool computes_on_gpus(const RunConfig& config, const Machine& machine);

/// Returns the threads of the compute stream: device.threads, or the cores of the affinity mask / the ranks that share
/// it, at least 1.
int threads_of(const RunConfig& config, int ranks_on_host);
/// Describes the problem of device.threads with this process's cores; empty: there is none. Reads the affinity mask.
std::string remark_on_threads(const RunConfig& config);

/// Returns the placement of the parameters on a mesh of this run. Pure.
Placement placement_of(const RunConfig& run, const Mesh& mesh);

/// Returns "parallel.data=-1" and, for the other axes, "parallel.NAME=1", so that the data axis takes all ranks. Pure.
std::vector<std::string> sets_of_plain_axes();

}  // namespace slipstream::planner
