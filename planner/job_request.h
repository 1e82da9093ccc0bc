// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inputs of a plan: a configuration, a rank of a world, and the machine.

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/machine.h"
#include "engine/plan/job.h"

namespace slipstream::planner {

struct JobRequest {
  RunConfig config;
  int world = 1;
  int rank = 0;
  int64_t vocab = 0;  // of the tokenizer; the model's when model.vocab_size is 0
  Machine machine;
  /// True: the update may use its own stream without slowing the compute stream, a step may be launched as one graph,
  /// and NCCL runs the collectives.
  bool on_gpus = false;
  int driver = 0;              // oldest driver of all ranks, because old drivers serialise NCCL's operations
                               // (comm/nccl/launch_order.h); 0: unknown
  bool update_beside = false;  // set by build_finished_job()
  bool proves = true;          // false: a plan that is only compared
  std::function<int64_t(const Job&)> extra_bytes;  // memory of a rank outside its plan; empty: none
  std::function<std::vector<int64_t>(const Job&)>
      spine_ns;  // durations of the training's spine items; empty: modelled from the machine
};

}  // namespace slipstream::planner
