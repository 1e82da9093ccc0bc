// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of works: binds each local op of a plan to a kernel, and each collective to a communicator.

#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "engine/plan/job.h"
#include "engine/step/step.h"

namespace slipstream::runtime {

/// Fills the staged batch and the scalars of the next step. The h2d stream's thread calls it once per run.
struct StagedBatch {
  std::byte* batch = nullptr;  // [micro_batches] x (ids int32 [batch, tokens], targets, with documents their begins)
  int64_t stride_bytes = 0;    // the distance between micro-batches
  std::span<float> scalars;    // for all groups, see write_scalars()
};
using LoadBatch = std::function<void(const StagedBatch&)>;

/// Writes the numbers of the sequences of a micro-batch if ModelSpec::numbers_sequences asks for them. The first
/// sequence is row `first` of the global batch of `step`. `batch` is that of the micro-batch.
void number_sequences(const ModelSpec& model, std::byte* batch, int64_t step, int64_t first);

/// Returns works for all items of `plan` that are not pieces of the model. `reports` is host memory (allocate_host) for
/// the report of every step, kReportSlots of Rank::Report. It may be null if the plan reports nothing.
/// `communicators[c]` serves channel c, and is null for local channels. They are borrowed, as is `job`.
BoundWorks bind_works(const Job& job, const Plan& plan, const UpdateOptions& update,
                      const std::vector<comm::Communicator*>& communicators, const LoadBatch& load, std::byte* reports);

}  // namespace slipstream::runtime
