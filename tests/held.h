// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rank's data for comparison: whole tensors without ZeRO, and shards.

#include <span>
#include <vector>

#include "trainer/runtime/rank/rank.h"

namespace slipstream::tests {

/// Blocks. Returns this rank's shards of all buckets, one after another.
inline std::vector<float> shards_of(runtime::Rank& rank, Slice BucketStorage::*what) {
  return rank.held(what, 0, rank.job().layout.flat_elems);
}

/// Blocks. Returns a named tensor as trained (&BucketStorage::master) or its gradient, without ZeRO, when a rank has it
/// all.
inline std::vector<float> whole_tensor(runtime::Rank& rank, Slice BucketStorage::*what, size_t parameter,
                                       size_t tensor) {
  std::vector<float> values(static_cast<size_t>(rank.job().model.parameters[parameter].tensors[tensor].whole_elems()));
  rank.read(what, parameter, tensor, 0, values);
  return values;
}

/// Pure. Returns a named tensor from the flat order.
inline std::span<const float> tensor_of(const Job& job, std::span<const float> flat, size_t parameter, size_t tensor) {
  const NamedTensor& named = job.model.parameters[parameter].tensor(tensor);
  return flat.subspan(static_cast<size_t>(job.layout.parameter_offsets[parameter] + named.begin_elems),
                      static_cast<size_t>(named.elems()));
}

}  // namespace slipstream::tests
