// SPDX-License-Identifier: Apache-2.0
// Divides shards among the ranks that hold them.

#include "engine/plan/saved_state.h"

#include <algorithm>

#include "engine/base/units.h"

namespace slipstream {
namespace {

constexpr int64_t kUnitElems = 16;  // 64 bytes of floats

/// Returns the elements [begin, begin + range.elems) of an array that holds `shard`, which begins at `shard_begin` of
/// the flat order.
SavedArray part_of(std::string name, DType dtype, const Slice& shard, int64_t shard_begin, const SavedRange& range,
                   int64_t most_elems) {
  return {std::move(name),
          dtype,
          range,
          {shard.buffer, shard.begin_bytes + bytes_of(range.begin_elems - shard_begin, dtype),
           bytes_of(range.elems, dtype)},
          most_elems,
          false};
}

}  // namespace

SavedRange saved_range(const Job& job, size_t bucket, int rank) {
  const Placement& placement = job.placement_of(bucket);
  const int64_t ranks = job.mesh.group_size(placement.copied_over),
                index = job.mesh.index_in_group(placement.copied_over, rank);
  const int64_t elems = job.storage[bucket].shard_elems, units = ceil_div(elems, kUnitElems),
                shard = job.layout.buckets[bucket].offset_elems + placement.shard_of(job.mesh, rank) * elems;
  const auto edge = [&](int64_t i) { return std::min(units * i / ranks * kUnitElems, elems); };
  return {shard + edge(index), edge(index + 1) - edge(index)};
}

std::vector<SavedArray> saved_arrays(const Job& job, size_t bucket) {
  const BucketStorage& storage = job.storage[bucket];
  const SavedRange range = saved_range(job, bucket, job.options.rank);
  const int64_t ranks = job.mesh.group_size(job.placement_of(bucket).copied_over), begin = storage.shard_offset_elems,
                most_elems = std::min(storage.shard_elems,
                                      ceil_div(ceil_div(storage.shard_elems, kUnitElems), ranks) * kUnitElems);
  std::vector<SavedArray> arrays{part_of("master", DType::f32, storage.master, begin, range, most_elems)};
  const std::vector<OptimizerState>& states = job.group_of(bucket).optimizer->states;
  for (size_t s = 0; s < states.size(); ++s)
    arrays.push_back(part_of(states[s].name, states[s].dtype, storage.states[s], begin, range, most_elems));
  const auto add_whole = [&](const char* name, const Slice& whole, int64_t begin_elems) {
    const int64_t elems = whole.size_bytes / size_of(DType::f32);
    if (elems == 0) return;
    arrays.push_back(part_of(name, DType::f32, whole, begin_elems, {begin_elems, elems}, elems));
    arrays.back().is_residual = true;
  };
  const int64_t bucket_begin = job.layout.buckets[bucket].offset_elems,
                index = job.mesh.index_in_group(job.placement_of(bucket).sums_over, job.options.rank);
  add_whole("gradients.residual", storage.residual, bucket_begin);
  add_whole("gradients.sum_residual", storage.sum_residual,
            bucket_begin + index * storage.sum_residual.size_bytes / size_of(DType::f32));
  return arrays;
}

int64_t saved_bytes(const std::vector<std::shared_ptr<const Job>>& stages) {
  int64_t bytes = 0;
  for (const auto& job : stages) {
    for (const ParameterGroup& group : job->groups)
      for (uint32_t p : group.parameters)
        if (const ParameterSpec& parameter = job->model.parameters[p]; !parameter.is_copy)
          for (size_t t = 0; t < parameter.all_tensors(); ++t)
            bytes +=
                parameter.tensor(t).whole_elems() * (size_of(DType::f32) + group.optimizer->state_bytes_per_elem());
    const int64_t ranks = job->mesh.world() / job->mesh.stages();
    for (const BucketStorage& storage : job->storage)
      bytes += ranks * (storage.residual.size_bytes + storage.sum_residual.size_bytes);
  }
  return bytes;
}

bool is_saved(const Job& job, const ParameterSpec& parameter, int rank) {
  return !parameter.is_copy && (parameter.is_split() || job.mesh.coordinates(rank).tensor == 0);
}

}  // namespace slipstream
