// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cuts a model into the parts that pipeline stages run. What crosses a cut is read off the declared accesses of pieces.

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/plan/model_spec.h"
#include "engine/plan/schedules/schedule.h"

namespace slipstream {

/// One part of the model on this stage: pieces that run without hearing from another stage.
struct Chunk {
  int part = 0;                                               // of the model, in forward order
  std::vector<uint32_t> forward, backward, weight, evaluate;  // pieces, in order; `weight` only if backward is split
  std::vector<BufferId> activations_in, activations_out;      // read here and written in the part before; and so on
  std::vector<BufferId> gradients_in, gradients_out;
  int slots = 1;  // micro-batches whose activations are alive at once

  const std::vector<uint32_t>& pieces(Pass pass) const {
    return pass == Pass::forward ? forward : pass == Pass::backward ? backward : weight;
  }
};

/// Takes from `model` what stage `stage` of `schedule` does not run: its lists of pieces and its parameters become
/// those of the stage. Splits backward pieces into works for inputs and works for weights where the schedule does.
/// Gives buffers that live from one pass to another an instance per micro-batch in flight. `layers[i]` blocks are in
/// part i.
/// Throws: PlanError if the layers do not add up, a part would be empty, something skips a part, or a weight gradient
/// reads what is overwritten before it would run.
std::vector<Chunk> cut_stage(ModelSpec& model, Buffers& buffers, const PipelineSchedule& schedule,
                             const std::vector<int>& layers, int stage);

/// Takes away the memory of activations and scratch that `is_touched` denies.
void drop_untouched(const ModelSpec& model, Buffers& buffers, const std::vector<char>& is_touched);

/// First layer of every part but the first. Pure.
std::vector<int> cuts_of(const std::vector<int>& layers);

/// Contiguous blocks for `parts` parts such that the slowest part is as fast as can be; embedding and head count, with
/// the first and the last part. Every part has a block. `cost` of a work in any unit.
/// Throws: ConfigError if there are fewer blocks than parts.
std::vector<int> balanced_layers(const ModelSpec& model, int parts, const std::function<double(const Cost&)>& cost);

}  // namespace slipstream
