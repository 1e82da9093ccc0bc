// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranges that AdamW updates: contiguous ranges of this rank's shards, as few as possible, one launch each.

#include <cstdint>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

struct UpdateShard {
  Slice master, gradient, momentum, variance;  // float
  Slice working;                               // in the type that travels; written if rounds_updates(job)
  Slice updated;                               // destination of the master; == master without double_buffer
  int64_t elems = 0;
  std::vector<int64_t> decay_edges;  // elements where weight decay ends, begins again and so on; it is on at the start
};

/// Does the update write rounded weights (bf16)? Weights that travel as int8 are encoded later, in blocks.
bool rounds_updates(const Job& job);

/// Pure. The shards of bucket `bucket`, or of all if it is negative, in flat order; shards that are neighbours in every
/// buffer are merged. Padding is included: its gradient is zero, so it stays zero.
std::vector<UpdateShard> update_shards(const Job& job, int32_t bucket);

}  // namespace slipstream
