// SPDX-License-Identifier: Apache-2.0
#pragma once
// The work table: what each local op of a plan does, bound to the kernels, and each collective, bound to a
// communicator.

#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "engine/plan/job.h"
#include "engine/step/step.h"

namespace slipstream::runtime {

/// Fills the staged batch and the scalars of the next step; called on the h2d stream's thread, once per run.
struct StagedBatch {
  std::byte* batch = nullptr;  // [micro_batches] x (ids int32 [batch, tokens], targets int32 [batch, tokens])
  int64_t stride_bytes = 0;    // between micro-batches
  std::span<float> scalars;    // of all groups, see write_scalars()
};
using LoadBatch = std::function<void(const StagedBatch&)>;

/// Works for all items of `plan` that are not pieces of the model. `reports`: host memory of the device (allocate_host)
/// that gets the report of every step, kReportSlots of {double loss sum, double norm}; may be null when the plan
/// reports nothing. `communicators[c]` serves channel c, null for local channels; borrowed, as is `job`.
BoundWorks bind_works(const Job& job, const Plan& plan, const UpdateOptions& update,
                      const std::vector<comm::Communicator*>& communicators, const LoadBatch& load, std::byte* reports);

}  // namespace slipstream::runtime
