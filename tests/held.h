// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rank's data for comparison: whole tensors without ZeRO, shards, and the flat order assembled from shards.

#include <algorithm>
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

/// Pure. Returns the flat order made of the shards of all data ranks, by rank (one entry without ZeRO).
inline std::vector<float> flat_from_shards(const Job& job, const std::vector<std::vector<float>>& shards) {
  std::vector<float> flat(static_cast<size_t>(job.layout.flat_elems));
  size_t at = 0;
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const int64_t elems = job.storage[b].shard_elems;
    for (size_t r = 0; r < shards.size(); ++r)
      std::copy_n(shards[r].data() + at, elems,
                  flat.data() + job.layout.buckets[b].offset_elems + static_cast<int64_t>(r) * elems);
    at += static_cast<size_t>(elems);
  }
  return flat;
}

/// Pure. Returns a named tensor from the flat order.
inline std::span<const float> tensor_of(const Job& job, std::span<const float> flat, size_t parameter, size_t tensor) {
  const NamedTensor& named = job.model.parameters[parameter].tensors[tensor];
  return flat.subspan(static_cast<size_t>(job.layout.parameter_offsets[parameter] + named.begin_elems),
                      static_cast<size_t>(named.elems()));
}

}  // namespace slipstream::tests
