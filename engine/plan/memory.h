// SPDX-License-Identifier: Apache-2.0
#pragma once
// Places the memory of a job: one decision per bucket, by the placement of its group.

#include "engine/plan/job.h"

namespace slipstream {

/// Number of layers whose gradients may wait for their reduction at once (sharded gradients).
constexpr int kGradientSlots = 2;

/// Pure. Bytes of a parameter, its gradient and its optimizer states that a rank keeps for all parameters, and for its
/// share of them (Rajbhandari et al. 2020, figure 1).
struct StateBytes {
  int64_t whole = 0;
  int64_t shared = 0;
};
StateBytes state_bytes(DType dtype, Sharding sharding, const OptimizerSpec& optimizer);

/// Adds all buffers of `job` (layout known) and fills storage and ids.
void place_memory(Job& job);

/// Pure. Is a bucket a table that head and embedding share across stages? It is alone in its bucket, on both.
bool holds_copy(const Job& job, size_t bucket);

/// Pure. Does a bucket belong to a layer, and not to the parameters before the first or after the last?
bool is_of_layer(const Job& job, const Bucket& bucket);

/// Pure. Slots for gathered layers (sharded parameters): the layer in use and those ahead of it, at most the number of
/// gathered layers; none if all persist, or on a pipeline stage without any.
int value_slots(const Job& job);

/// Pure. Remedy for `missing_bytes` of memory if layers are gathered into slots: the deepest prefetch that fits. Empty
/// without such slots.
std::string slots_remedy(const Job& job, int64_t missing_bytes);

/// Pure. The first `elems` elements of slot number `slot` of `count` in a slot buffer.
Slice slot_slice(const Job& job, BufferId slots, int slot, int count, int64_t elems, DType dtype);

/// Pure. Location of a bucket's gradients in slot number `slot`: a layer's slot, or (number kGradientSlots) the slot of
/// the model's two ends, which holds all buckets of one end.
Slice gradient_slot_slice(const Job& job, int slot, size_t bucket);

/// Memory used in addition to a plan.
struct ExtraMemory {
  std::string owner;
  int64_t size_bytes = 0;
};

/// The memory table: one line per owner, then those of `beside`, then the total of all.
std::string memory_table(const Job& job, const std::vector<ExtraMemory>& beside = {});

}  // namespace slipstream
