// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operands of an update: contiguous ranges of this rank's shards, as few as possible, or its matrices; one call
// each.

#include <cstdint>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

struct UpdateShard {
  Slice master, gradient;     // float
  std::vector<Slice> states;  // OptimizerSpec::states
  Slice working;              // in the type that travels; written if Placement::rounds_updates()
  Slice updated;              // destination of the master; == master without double_buffer
  int64_t elems = 0;
  int64_t rows = 0, cols = 0;     // of a matrix, all of which decays with a multiplier of 1
  std::vector<UpdateSpan> spans;  // ascending; elements before the first have multipliers of 1
};

/// The scalars of a group, and where the clip factor is among them. Pure.
Slice scalars_of(const Job& job, const ParameterGroup& group);
Slice clip_factor_of(const Job& job, const ParameterGroup& group);

/// The limits of the step's norm and loss, in a plan that skips. Pure.
Slice limits_of(const Job& job);

/// Pure. The shards that `update` moves, of its bucket or of all buckets of its group, in flat order; shards that are
/// neighbours in every buffer are merged. Padding is included: its gradient is zero, so it stays zero. An optimizer of
/// whole matrices gets each tensor of a parameter as a matrix instead, without padding. It must have
/// no multipliers.
std::vector<UpdateShard> update_shards(const Job& job, const Item& update);

/// The row of options.multipliers that holds for a tensor; null: none. Pure.
const UpdateMultipliers* multipliers_of(const PlanOptions& options, const std::string& tensor);

/// Pure. Cost of the update of a bucket on the rank whose shard costs most, so that all ranks plan the same order.
Cost update_cost(const Job& job, size_t bucket);

/// Pure. The shape of the update of a tensor as a matrix: its first dimension by the others.
UpdateShape matrix_shape(const PlanOptions& options, const NamedTensor& tensor, bool rounds);

}  // namespace slipstream
