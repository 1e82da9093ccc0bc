// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of the training state that a rank saves: ranks with the same shard divide it, and each element is saved
// once.

#include "engine/plan/job.h"

namespace slipstream {

/// A range of the flat order (ParameterLayout).
struct SavedRange {
  int64_t begin_elems = 0;
  int64_t elems = 0;  // 0: other ranks save the shard
};

/// Pure. The ranks whose masters and optimizer states hold the same elements: all that hold the same parameters without
/// ZeRO, the same shard of every group with hybrid sharding, and none but this rank with ZeRO over all ranks.
Axis same_shard_axis(const Job& job);

/// Pure. The part of a bucket's shard whose masters and optimizer states this rank saves. The ranks of
/// same_shard_axis() divide the shard, padding included, as evenly as units of 16 elements allow.
SavedRange saved_range(const Job& job, size_t bucket);

/// Pure. Does this rank's part of the mesh save the parameter? No other tensor rank or stage that holds the same
/// elements does.
bool is_saved(const Job& job, const ParameterSpec& parameter);

}  // namespace slipstream
