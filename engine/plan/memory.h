// SPDX-License-Identifier: Apache-2.0
#pragma once
// Places the memory of a job: one decision per bucket, by ZeRO stage.

#include "engine/plan/job.h"

namespace slipstream {

/// Layers whose gradients may wait for their reduction at once (stages 2 and 3).
constexpr int kGradientSlots = 2;

/// Bytes of a parameter, its gradient and its optimizer states that a rank keeps of all parameters, and of its share of
/// them (Rajbhandari et al. 2020, figure 1). Pure.
struct StateBytes {
  int64_t whole = 0;
  int64_t shared = 0;
};
StateBytes state_bytes(DType dtype, int zero_stage, const OptimizerSpec& optimizer);

/// Adds all buffers of `job` (layout known) and fills homes and ids.
void place_memory(Job& job);

/// Whether a bucket is a table that the head and the embedding share across stages: alone in it, on both. Pure.
bool holds_copy(const Job& job, size_t bucket);

/// Whether a bucket is of a layer, and not of what is before the first or behind the last. Pure.
bool is_of_layer(const Job& job, const Bucket& bucket);

/// Slots for gathered layers (stage 3): a layer in use and those ahead of it, never more than there are layers that are
/// gathered: none where all persist, or on a pipeline stage without any. Pure.
int value_slots(const Job& job);

/// What to do about `missing_bytes` of memory where layers are gathered into slots: the deepest prefetch that fits.
/// Empty without such slots. Pure.
std::string slots_remedy(const Job& job, int64_t missing_bytes);

/// The first `elems` elements of slot number `slot` of `count` in a slot buffer. Pure.
Slice slot_slice(const Job& job, BufferId slots, int slot, int count, int64_t elems, DType dtype);

/// Where the gradients of a bucket are in slot number `slot`: that of a layer, or (number kGradientSlots) the one of
/// the model's two ends, which has all buckets of one end. Pure.
Slice gradient_slot_slice(const Job& job, int slot, size_t bucket);

/// Memory that somebody takes beside a plan.
struct ExtraMemory {
  std::string owner;
  int64_t size_bytes = 0;
};

/// The memory table: one line per owner, those `beside` the plan after those in it, then the total of all.
std::string memory_table(const Job& job, const std::vector<ExtraMemory>& beside = {});

}  // namespace slipstream
