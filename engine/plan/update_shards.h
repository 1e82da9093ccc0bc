// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operands of an update, one call for each entry. They are contiguous ranges of this rank's shards, as few as
// possible, or its matrices.

#include <cstdint>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

struct UpdateShard {
  Slice master, gradient;     // float
  std::vector<Slice> states;  // one for each of OptimizerSpec::states
  Slice working;              // in the type that travels; written if Placement::rounds_updates()
  Slice updated;              // the destination of the master; == master without double_buffer
  int64_t elems = 0;
  int64_t rows = 0, cols = 0;     // the size of a matrix, all of which decays with a multiplier of 1
  std::vector<UpdateSpan> spans;  // ascending; elements before the first span have multipliers of 1
};

/// Return the scalars of a group, and the clip factor among them. Pure.
Slice scalars_of(const Job& job, const ParameterGroup& group);
Slice clip_factor_of(const Job& job, const ParameterGroup& group);

/// Returns the limits of the step's norm and loss, for a plan that skips. Pure.
Slice limits_of(const Job& job);

/// Pure. Returns the shards that `update` changes, of its bucket or of all buckets of its group, in flat order. Shards
/// that are neighbours in every buffer are merged. Padding is included, because its gradient is zero and so it stays
/// zero. An optimizer of whole matrices instead gets each tensor of a parameter as a matrix without padding, and must
/// have no multipliers.
std::vector<UpdateShard> update_shards(const Job& job, const Item& update);

/// Pure. Returns the row of options.multipliers that applies to a tensor, or null if there is none.
const UpdateMultipliers* multipliers_of(const PlanOptions& options, const std::string& tensor);

/// Pure. Returns the cost of the update of a bucket on the rank whose shard costs most, so that all ranks plan the same
/// order.
Cost update_cost(const Job& job, size_t bucket);

/// Pure. Returns the shape of the update of a tensor as a matrix: its first dimension by the others.
UpdateShape matrix_shape(const PlanOptions& options, const NamedTensor& tensor, bool rounds);

}  // namespace slipstream
