// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranges that an optimizer updates: contiguous ranges of this rank's shards, as few as possible, one launch each.

#include <cstdint>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

struct UpdateShard {
  Slice master, gradient;     // float
  std::vector<Slice> states;  // OptimizerSpec::states
  Slice working;              // in the type that travels; written if rounds_updates(job)
  Slice updated;              // destination of the master; == master without double_buffer
  int64_t elems = 0;
  std::vector<int64_t> decay_edges;  // elements where weight decay ends, begins again and so on; it is on at the start
};

/// The scalars of a group, and where the clip factor is among them. Pure.
Slice scalars_of(const Job& job, const ParameterGroup& group);
Slice clip_factor_of(const Job& job, const ParameterGroup& group);

/// Does the update write rounded weights (bf16)? Weights that travel as int8 are encoded later, in blocks.
bool rounds_updates(const Job& job);

/// Pure. The shards that `update` moves, of its bucket or of all buckets of its group, in flat order; shards that are
/// neighbours in every buffer are merged. Padding is included: its gradient is zero, so it stays zero.
std::vector<UpdateShard> update_shards(const Job& job, const Item& update);

}  // namespace slipstream
