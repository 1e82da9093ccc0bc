// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory of a rank in a run of other software, which keeps other values than this program's plan.

#include <cstdint>
#include <vector>

#include "engine/config/machine.h"
#include "engine/config/resolve.h"
#include "engine/plan/memory.h"

namespace slipstream::planner {

/// Returns the largest stage's bytes on a GPU for a run of PyTorch's FSDP as torchtitan trains it, by owner: what its
/// allocator reserves. All values are counted, and none is fitted:
///   states       16 bytes of a parameter (float32 weight and gradient, two moments), over all ranks
///   weights      bfloat16, of two gathered layers, the embedding and the head; with pipeline stages all of a stage,
///                and their float32 gradients, which travel once
///   activations  recompute = "full": the input of each layer; otherwise the outputs of every second product, of
///                attention, and the input (torchtitan's selective checkpoints)
///   messages     of stages: a buffer per micro-batch for inputs and for gradients, and the outputs in flight
///   head         input and output of the last norm for all tokens
///   logits       14 bytes of each: bfloat16, float32, their logarithms of probabilities and two gradients, less one
///                that is reused; 18 with tensor ranks, whose loss writes one more; 4 with a compiled loss
///   layer        values of one layer that is computed again
/// The result is empty unless the software's memory is PyTorch's, and for models with experts. Pure.
/// Source: torch.distributed.tensor.parallel.loss, torch.distributed.pipelining, torchtitan's llama3.
std::vector<ExtraMemory> memory_of_software(const ResolvedConfig& config, const Software& software);

}  // namespace slipstream::planner
