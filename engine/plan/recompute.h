// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activation recomputation: which activations a layer's backward pass makes again instead of keeping, by which works,
// and where they live meanwhile. Everything is read off the declared accesses; models only say what is cheap
// (ModelSpec::cheap, ::replays).

#include <cstdint>
#include <vector>

#include "engine/plan/model_spec.h"
#include "engine/plan/stages.h"

namespace slipstream {

/// train.recompute.
enum class Recomputation : uint8_t {
  none,
  selective,  // what is wide and made again by moving bytes only: outputs of norms and activation functions
              // (ModelSpec::cheap)
  full,       // everything that can be made from a layer's input (Chen et al. 2016, arXiv:1604.06174)
};
const char* name_of(Recomputation how);

struct Recomputed {
  Recomputation how = Recomputation::none;
  int64_t saved_bytes = 0;  // of this rank's activations: instances not kept, less the one that all of them share
  Cost paid;                // of all works that run again in a step
};

/// Puts in front of each backward (and, where it is split off, weight) piece the forward works, and communication
/// between them, that make again what it reads. What is made again lives within one use of a chunk only; all such
/// buffers become views of one buffer, `recomputed`, in which two share bytes if they are never alive together. Call
/// after cut_stage. The bits of every result stay what they were: the same works read the same bits.
/// Throws: PlanError if a work to be run again reads what is gone.
Recomputed recompute(ModelSpec& model, Buffers& buffers, std::vector<Chunk>& chunks, Recomputation how);

}  // namespace slipstream
