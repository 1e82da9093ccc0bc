// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activation recomputation: which activations a layer's backward pass recomputes instead of keeping, by which works,
// and in which memory. Declared accesses determine everything. Models only mark what is cheap (ModelSpec::cheap,
// ::replays).

#include <cstdint>
#include <vector>

#include "engine/base/modes.h"
#include "engine/plan/model_spec.h"
#include "engine/plan/stages.h"

namespace slipstream {

struct Recomputed {
  Recomputation how = Recomputation::none;
  /// The activations of this rank that are not kept, less the one instance that all of them share.
  int64_t saved_bytes = 0;
  Cost paid;  // the cost of all works that run again in a step
};

/// Inserts the forward works that recompute its inputs, and the communication between them, before each backward (and,
/// if split, weight) piece in the first `layers_max` layers of every chunk (0: in all). Recomputed buffers live only
/// within one use of a chunk. All become views of one buffer, `recomputed`, in which two share bytes if their lifetimes
/// are disjoint. If passes of two micro-batches take turns, each slot has an instance of it. Must be called after
/// cut_stage. The bits of every result stay the same, because the same works read the same bits. Throws: PlanError if a
/// work that must run again reads data that is gone.
Recomputed recompute(ModelSpec& model, Buffers& buffers, std::vector<Chunk>& chunks, Recomputation how,
                     int layers_max = 0, bool takes_turns = false);

}  // namespace slipstream
