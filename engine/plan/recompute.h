// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activation recomputation: which activations a layer's backward pass recomputes instead of keeping, by which works,
// and in which memory. Declared accesses determine everything; models only mark what is cheap (ModelSpec::cheap,
// ::replays).

#include <cstdint>
#include <vector>

#include "engine/base/modes.h"
#include "engine/plan/model_spec.h"
#include "engine/plan/stages.h"

namespace slipstream {

struct Recomputed {
  Recomputation how = Recomputation::none;
  int64_t saved_bytes = 0;  // of this rank's activations: instances not kept, less the one that all of them share
  Cost paid;                // of all works that run again in a step
};

/// Inserts before each backward (and, if split, weight) piece the forward works, and communication between them, that
/// recompute its inputs, in the first `layers_max` layers of every chunk (0: in all). Recomputed buffers live within
/// one use of a chunk only; all become views of one buffer, `recomputed`, in which two share bytes if their lifetimes
/// are disjoint. Call after cut_stage. The bits of every result stay the same: the same works read the same bits.
/// Throws: PlanError if a work that must run again reads data that is gone.
Recomputed recompute(ModelSpec& model, Buffers& buffers, std::vector<Chunk>& chunks, Recomputation how,
                     int layers_max = 0);

}  // namespace slipstream
