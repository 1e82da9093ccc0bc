// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inputs that all ranks of a run agree on, and the plan that they make from them.

#include <cstdint>

#include "comm/nccl/nccl_table.h"
#include "engine/config/config.h"
#include "engine/config/machine.h"
#include "engine/config/resolve.h"
#include "engine/data/datasets/dataset.h"
#include "trainer/planner/finished_job.h"
#include "trainer/runtime/durability/checkpoints.h"
#include "trainer/runtime/loop/train_options.h"
#include "trainer/runtime/rank/device_assignment.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

/// Returns the limits of waiting that the run file sets, for the start of MPI. If the file cannot be read, which ranks
/// report together later, returns the defaults.
comm::WaitLimits limits_before_mpi(const TrainOptions& options);

struct AgreedInputs {
  RunConfig written;  // the run file with the settings of the command line
  int threads = 1;    // of the compute stream
  DeviceAssignment assignment;
  data::Dataset dataset;  // a dry run does not open it
  int64_t vocab = 0;
  Machine own_machine;  // describes this host
  Machine machine;      // common to all ranks
};

/// Blocks. Collective. Reads the run file and the data on every rank, and chooses the rank's device.
/// Throws: AgreedFailure if a rank cannot, or if ranks differ in build, configuration, instruction set or data.
AgreedInputs agree_on_inputs(World& world, const TrainOptions& options);

struct PlannedRun : AgreedInputs {
  ResolvedConfig config;
  planner::FinishedJob finished;
  comm::NcclTable written_nccl;  // before the planner completed it
  int64_t free_at_start = 0;     // bytes of the GPU; 0 on CPUs and in a dry run

  bool on_gpus() const { return assignment.kind == DeviceKind::cuda; }
};

/// Blocks. Collective. Plans the run, checks that its memory fits, and that all ranks have the same plan.
/// Throws: AgreedFailure.
PlannedRun plan_run(World& world, const TrainOptions& options, AgreedInputs inputs);

/// Returns what the checkpoints of this run record about it. Pure.
RunIdentity identity_of(const PlannedRun& run);

/// Blocks. Prints the plan of a dry run and writes plan.json, unless the folder holds a run.
void print_plan(const PlannedRun& run);

/// Prints the model, the batch, the plan's remarks and the memory of a rank.
void print_start(const World& world, const TrainOptions& options, const PlannedRun& run);

}  // namespace slipstream::runtime
