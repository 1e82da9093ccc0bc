// SPDX-License-Identifier: Apache-2.0
#pragma once
// The options of a training run beside its run file.

#include <cstdint>
#include <optional>

#include "engine/config/load.h"

namespace slipstream::runtime {

struct TrainOptions : RunSource {
  bool resume = false;
  bool ignore_memory = false;  // continue from a checkpoint on disk and not from a snapshot; needs resume
  bool dry_run = false;
  std::optional<int64_t> replayed_step;  // run this step twice and compare its bits; needs resume
  std::optional<int64_t> delay_seed;     // random pauses before works; the seed is at least 0
  bool check_hazards = false;
  bool paced = false;  // sleep for the planned time of every work instead of computing
};

}  // namespace slipstream::runtime
