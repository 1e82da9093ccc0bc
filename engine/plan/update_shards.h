// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the optimizer updates: contiguous ranges of this rank's shards, as few as there can be, each one launch.

#include <cstdint>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

struct UpdateShard {
  Slice master, gradient;     // float
  std::vector<Slice> states;  // OptimizerSpec::states
  Slice working;              // as it travels; to be written if rounds_updates(job)
  Slice updated;              // where the master goes, == master unless weights have a second buffer
  int64_t elems = 0;
  std::vector<int64_t> decay_edges;  // elements where weight decay ends, begins again and so on; it begins on
};

/// The scalars of a group, and where the clip factor is among them. Pure.
Slice scalars_of(const Job& job, const ParameterGroup& group);
Slice clip_factor_of(const Job& job, const ParameterGroup& group);

/// Does the update write rounded weights (bf16)? What travels as int8 is made on the way, in blocks.
bool rounds_updates(const Job& job);

/// The shards that `update` moves: of its bucket, or of all buckets of its group, in flat order; neighbours in every
/// buffer are one. Padding is among them: its gradient is zero, so it stays zero. Pure.
std::vector<UpdateShard> update_shards(const Job& job, const Item& update);

}  // namespace slipstream
