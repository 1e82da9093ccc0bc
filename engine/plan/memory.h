// SPDX-License-Identifier: Apache-2.0
#pragma once
// Places the memory of a job. The placement of a bucket's group decides where the bucket is.

#include "engine/plan/job.h"

namespace slipstream {

/// The number of layers whose gradients of a group may wait for their reduction at once (sharded gradients).
constexpr int kGradientSlots = 2;

/// Pure. The bytes of a parameter, its gradient and its optimizer states that a rank keeps for all parameters, and
/// those for its share of them (Rajbhandari et al. 2020, figure 1).
struct StateBytes {
  int64_t whole = 0;
  int64_t shared = 0;
};
StateBytes state_bytes(DType dtype, Sharding sharding, const OptimizerSpec& optimizer);

/// Adds all buffers of `job`, whose layout must be known, and fills in storage and ids.
void place_memory(Job& job);

/// Pure. Returns true if a bucket is a table that the embedding and the head share across stages. On both stages, such
/// a table has a bucket of its own.
bool holds_copy(const Job& job, size_t bucket);

/// Pure. Returns true if a bucket belongs to a layer, and not to the parameters before the first layer or after the
/// last.
bool is_of_layer(const Job& job, const Bucket& bucket);

/// Pure. Returns the number of slots for gathered layers (sharded parameters): the layer in use (two of them with
/// paired passes) and those ahead of it, at most the number of gathered layers. Returns 0 if all layers persist, or on
/// a pipeline stage without layers.
int value_slots(const Job& job);

/// Pure. Returns a remedy for `missing_bytes` of memory if layers are gathered into slots: the deepest prefetch that
/// fits. Empty without such slots.
std::string slots_remedy(const Job& job, int64_t missing_bytes);

/// Pure. Returns the first `elems` elements of slot number `slot` of `count` in a slot buffer.
Slice slot_slice(const Job& job, BufferId slots, int slot, int count, int64_t elems, DType dtype);

/// Pure. Returns the location of a bucket's reduced shard before it is added to the sum (sharded gradients).
Slice gradient_part_slice(const Job& job, size_t bucket);

/// Pure. Returns the location of a bucket's gradients in slot number `slot`. This is a layer's slot among those of the
/// bucket's group, or (number kGradientSlots) the slot of the model's two ends, which holds all buckets of one end.
Slice gradient_slot_slice(const Job& job, int slot, size_t bucket);

/// Memory that is used in addition to a plan.
struct ExtraMemory {
  std::string owner;
  int64_t size_bytes = 0;
};

/// Returns the memory table: one line per owner, then the lines of `beside`, then the total of all.
std::string memory_table(const Job& job, const std::vector<ExtraMemory>& beside = {});

}  // namespace slipstream
