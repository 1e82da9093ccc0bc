// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a job is planned from: a configuration, a rank of a world, and the machine.

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
  /// The update may have a stream of its own, which takes nothing from the compute stream; a step may be launched as
  /// one graph; collectives are NCCL's.
  bool on_gpus = false;
  int driver =
      0;  // the oldest of all ranks: older ones serialise NCCL's operations (comm/nccl/launch_order.h); 0: not known
  bool update_beside = false;                      // build_finished_job() says
  bool proves = true;                              // false: a plan that is only compared
  std::function<int64_t(const Job&)> extra_bytes;  // memory that a rank takes beside its plan; empty: none
  std::function<std::vector<int64_t>(const Job&)>
      spine_ns;  // what spine items of training take; empty: what the machine says
};

}  // namespace slipstream::planner
