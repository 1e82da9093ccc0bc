// SPDX-License-Identifier: Apache-2.0
#pragma once
// A training run: all ranks agree on its inputs, then each enters the training loop.

#include "trainer/runtime/loop/train_options.h"

namespace slipstream::runtime {

/// Blocks. Collective. Trains the model of a run file and writes its run folder. With dry_run, prints the plan instead.
/// Returns the exit code. Throws: Error, in a world of one rank; with several ranks it prints the error and ends all of
/// them.
int train(const TrainOptions& options);

}  // namespace slipstream::runtime
