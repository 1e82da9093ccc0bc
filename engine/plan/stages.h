// SPDX-License-Identifier: Apache-2.0
#pragma once
// Divides a model into the parts that pipeline stages run. The declared accesses of pieces determine the transfers.

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/plan/model_spec.h"
#include "engine/plan/schedules/schedule.h"

namespace slipstream {

/// One part of the model on this stage: pieces that run without communication with another stage.
struct Chunk {
  int part = 0;  // its position in the model, in forward order
  /// Pieces in their order; `weight` is used only if backward is split.
  std::vector<uint32_t> forward, backward, weight, evaluate;
  std::vector<BufferId> activations_in, activations_out;  // read here and written in the part before; and the reverse
  std::vector<BufferId> gradients_in, gradients_out;
  int slots = 1;  // the micro-batches whose activations are alive at once

  const std::vector<uint32_t>& pieces(Pass pass) const {
    return pass == Pass::forward ? forward : pass == Pass::backward ? backward : weight;
  }
};

/// Removes the parts that stage `stage` of `schedule` does not run from `model`, whose lists of pieces and parameters
/// become those of the stage. Splits backward pieces into works for inputs and works for weights if the schedule does.
/// Buffers that live from one pass to another get an instance per micro-batch in flight. Part i has `layers[i]` blocks.
/// Throws: PlanError if the layers do not add up, a part would be empty, data skips a part, or a weight gradient reads
/// data that is overwritten before it would run.
std::vector<Chunk> cut_stage(ModelSpec& model, Buffers& buffers, const PipelineSchedule& schedule,
                             const std::vector<int>& layers, int stage);

/// Removes the memory of activations and scratch for which `is_touched` is false.
void drop_untouched(const ModelSpec& model, Buffers& buffers, const std::vector<char>& is_touched);

/// Pure. Returns the first layer of every part except the first part.
std::vector<int> cuts_of(const std::vector<int>& layers);

/// Pure. Divides contiguous blocks into `parts` parts such that the slowest part is as fast as possible. The embedding
/// counts with the first part, and the head with the last. Every part has a block. `cost` returns the cost of a work in
/// any unit. Throws: ConfigError if there are fewer blocks than parts.
std::vector<int> balanced_layers(const ModelSpec& model, int parts, const std::function<double(const Cost&)>& cost);

}  // namespace slipstream
