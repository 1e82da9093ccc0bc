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

/// Where the clip factor is among the scalars of a step. Pure.
Slice clip_factor_of(const Job& job);

/// Does the update write rounded weights (bf16)? What travels as int8 is made on the way, in blocks.
bool rounds_updates(const Job& job);

/// The shards of bucket `bucket`, or of all if it is negative, in flat order; neighbours in every buffer are one.
/// Padding is among them: its gradient is zero, so it stays zero. Pure.
std::vector<UpdateShard> update_shards(const Job& job, int32_t bucket);

}  // namespace slipstream
