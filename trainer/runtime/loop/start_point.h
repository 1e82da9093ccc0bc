// SPDX-License-Identifier: Apache-2.0
#pragma once
// The beginning of a run: its first step, or the state that it continues.

#include <optional>

#include "trainer/runtime/durability/peer_memory.h"
#include "trainer/runtime/durability/resume.h"
#include "trainer/runtime/loop/planned_run.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

struct StartPoint {
  RunName name;                           // the name of this start, with the earlier starts that it may continue
  std::optional<ResumePoint> state = {};  // none: the run begins at step 1

  int64_t step() const { return state ? state->manifest.step : 0; }
};

/// Blocks. Collective. Chooses the newest state that this run can continue, and checks model.init of a run that
/// continues none. Returns none if --resume finds that nothing is left to train. Throws: AgreedFailure; CheckpointError
/// on all ranks if there are checkpoints, but none can be used.
std::optional<StartPoint> find_start(World& world, const TrainOptions& options, const PlannedRun& run);

}  // namespace slipstream::runtime
