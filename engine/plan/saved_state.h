// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of the training state that a rank saves. Ranks with the same shard divide it, so that each element is saved
// once.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

/// A range of the flat order (ParameterLayout).
struct SavedRange {
  int64_t begin_elems = 0;
  int64_t elems = 0;  // 0: other ranks save the shard
};

/// Pure. Returns the part of a bucket's shard whose masters and optimizer states `rank`, a rank of this stage, saves.
/// The ranks of Placement::copied_over divide the shard, including padding, as evenly as units of 16 elements allow.
SavedRange saved_range(const Job& job, size_t bucket, int rank);

/// The part of one array of a bucket that this rank saves.
struct SavedArray {
  std::string name;  // "master", OptimizerState::name, "gradients.residual" or "gradients.sum_residual"
  DType dtype = DType::f32;
  SavedRange range;
  Slice from;                // the bytes of the part
  int64_t most_elems = 0;    // the longest range of a rank that has a part of the bucket
  bool is_residual = false;  // a residual of error feedback, which belongs to a rank and a bucket and not to a tensor
};

/// Pure. Returns the arrays of a bucket that a run needs to continue: masters and optimizer states by saved_range(),
/// and, with error feedback, the residuals, which differ on all ranks.
std::vector<SavedArray> saved_arrays(const Job& job, size_t bucket);

/// Pure. Returns the bytes of the tensors of a checkpoint: masters and optimizer states of every element of the whole
/// model, and the residuals of all ranks. `stages` has a job of every pipeline stage.
int64_t saved_bytes(const std::vector<std::shared_ptr<const Job>>& stages);

/// Pure. Returns true if the part of the mesh of `rank`, a rank of this stage, saves the parameter. No other tensor
/// rank or stage that holds the same elements does.
bool is_saved(const Job& job, const ParameterSpec& parameter, int rank);

}  // namespace slipstream
