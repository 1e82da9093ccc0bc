// SPDX-License-Identifier: Apache-2.0
// Division of shards among the ranks that hold them.

#include "engine/plan/saved_state.h"

#include <algorithm>

#include "engine/base/units.h"

namespace slipstream {

Axis same_shard_axis(const Job& job) {
  return job.zero_stage == 0 ? Axis::replica : job.is_hybrid() ? Axis::data_outer : Axis::self;
}

SavedRange saved_range(const Job& job, size_t bucket) {
  constexpr int64_t kUnitElems = 16;  // 64 bytes of floats
  const Axis axis = same_shard_axis(job);
  const int64_t ranks = job.mesh.group_size(axis), index = job.mesh.index_in_group(axis, job.options.rank);
  const BucketStorage& storage = job.storage[bucket];
  const int64_t units = ceil_div(storage.shard_elems, kUnitElems);
  const auto edge = [&](int64_t i) { return std::min(units * i / ranks * kUnitElems, storage.shard_elems); };
  return {storage.shard_offset_elems + edge(index), edge(index + 1) - edge(index)};
}

bool is_saved(const Job& job, const ParameterSpec& parameter) {
  return !parameter.is_copy && (parameter.is_split() || job.mesh.coordinates(job.options.rank).tensor == 0);
}

}  // namespace slipstream
