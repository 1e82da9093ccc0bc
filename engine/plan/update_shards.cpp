// SPDX-License-Identifier: Apache-2.0
// Ends and beginnings of weight decay, merging of neighbouring shards, and the matrices of a shard.

#include "engine/plan/update_shards.h"

#include <algorithm>

namespace slipstream {
namespace {

/// Calls visit(tensor, flat offset) for every tensor in elements [begin, begin + elems) of the flat order.
template <typename Visit>
void for_tensors(const Job& job, const Bucket& bucket, int64_t begin, int64_t elems, const Visit& visit) {
  for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p) {
    const PlacedPart& placed = job.layout.parts[p];
    if (placed.part.begin_elems > 0 || placed.offset_elems < begin || placed.offset_elems >= begin + elems) continue;
    for (const NamedTensor& tensor : job.model.parameters[placed.part.parameter].tensors)
      visit(tensor, placed.offset_elems + tensor.begin_elems);
  }
}

Slice moved_to(const Job& job, Slice slice) {
  if (job.options.double_buffer && slice.buffer == job.ids.values) slice.buffer = job.ids.values_next;
  return slice;
}

/// Elements [begin, begin + elems) of a shard.
Slice range_of(const Slice& shard, int64_t shard_elems, int64_t begin, int64_t elems) {
  const int64_t elem_bytes = shard.size_bytes / shard_elems;
  return {shard.buffer, shard.begin_bytes + begin * elem_bytes, elems * elem_bytes};
}

void add_matrices(const Job& job, size_t bucket, std::vector<UpdateShard>& shards) {
  const BucketStorage& storage = job.storage[bucket];
  for_tensors(job, job.layout.buckets[bucket], storage.shard_offset_elems, storage.shard_elems,
              [&](const NamedTensor& tensor, int64_t offset_elems) {
                const UpdateShape shape = matrix_shape(job.options, tensor, rounds_updates(job));
                const auto matrix = [&](const Slice& shard) {
                  return range_of(shard, storage.shard_elems, offset_elems - storage.shard_offset_elems, shape.elems);
                };
                UpdateShard shard{.master = matrix(storage.master),
                                  .gradient = matrix(storage.gradient),
                                  .states = {},
                                  .working = moved_to(job, matrix(storage.working)),
                                  .updated = moved_to(job, matrix(storage.master)),
                                  .elems = shape.elems,
                                  .rows = shape.rows,
                                  .cols = shape.cols,
                                  .decay_edges = {}};
                for (const Slice& state : storage.states) shard.states.push_back(matrix(state));
                shards.push_back(std::move(shard));
              });
}

UpdateShard update_shard(const Job& job, size_t bucket) {
  const BucketStorage& storage = job.storage[bucket];
  UpdateShard shard{.master = storage.master,
                    .gradient = storage.gradient,
                    .states = storage.states,
                    .working = moved_to(job, storage.working),
                    .updated = moved_to(job, storage.master),
                    .elems = storage.shard_elems,
                    .decay_edges = {}};
  // Padding after a part is included: its gradient is zero, so it stays zero.
  const Bucket& b = job.layout.buckets[bucket];
  bool decays = true;
  for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p) {
    const PlacedPart& placed = job.layout.parts[p];
    const int64_t next =
        p + 1 < b.first_part + b.part_count ? job.layout.parts[p + 1].offset_elems : b.offset_elems + b.elems;
    const int64_t begin = std::max<int64_t>(0, placed.offset_elems - storage.shard_offset_elems);
    if (next <= storage.shard_offset_elems || begin >= shard.elems ||
        job.model.parameters[placed.part.parameter].decay == decays)
      continue;
    decays = !decays;
    shard.decay_edges.push_back(begin);
  }
  return shard;
}

/// Merges `next` into `shard` if it directly follows in every buffer.
bool join(UpdateShard& shard, const UpdateShard& next, bool rounds) {
  const auto follows = [](const Slice& a, const Slice& b) {
    return a.buffer == b.buffer && a.begin_bytes + a.size_bytes == b.begin_bytes;
  };
  if (rounds && !follows(shard.working, next.working)) return false;
  for (Slice UpdateShard::*which : {&UpdateShard::master, &UpdateShard::gradient, &UpdateShard::updated})
    if (!follows(shard.*which, next.*which)) return false;
  if (!std::equal(shard.states.begin(), shard.states.end(), next.states.begin(), follows)) return false;
  const auto turn = [&edges = shard.decay_edges](int64_t at) {  // two changes at one element cancel
    if (!edges.empty() && edges.back() == at)
      edges.pop_back();
    else
      edges.push_back(at);
  };
  if (shard.decay_edges.size() % 2 == 1) turn(shard.elems);  // a shard begins with decay
  for (int64_t edge : next.decay_edges) turn(shard.elems + edge);
  for (Slice UpdateShard::*which :
       {&UpdateShard::master, &UpdateShard::working, &UpdateShard::gradient, &UpdateShard::updated})
    (shard.*which).size_bytes += (next.*which).size_bytes;
  for (size_t s = 0; s < shard.states.size(); ++s) shard.states[s].size_bytes += next.states[s].size_bytes;
  shard.elems += next.elems;
  return true;
}

}  // namespace

Slice scalars_of(const Job& job, const ParameterGroup& group) {
  return flat_slice(job.ids.scalars, group.first_scalar, static_cast<int64_t>(group.optimizer->scalars.size()),
                    DType::f32);
}

Slice clip_factor_of(const Job& job, const ParameterGroup& group) {
  return flat_slice(job.ids.scalars, group.first_scalar + static_cast<int64_t>(group.optimizer->clip_scalar), 1,
                    DType::f32);
}

Slice limits_of(const Job& job) { return flat_slice(job.ids.scalars, job.scalars(), kLimits, DType::f32); }

bool rounds_updates(const Job& job) { return job.gather_dtype() == DType::bf16; }

std::vector<UpdateShard> update_shards(const Job& job, const Item& update) {
  std::vector<UpdateShard> shards;
  for (size_t b = 0; b < job.storage.size(); ++b) {
    if (update.bucket >= 0 ? update.bucket != static_cast<int32_t>(b)
                           : update.group != static_cast<int32_t>(job.layout.buckets[b].group))
      continue;
    if (job.group_of(b).optimizer->granularity == Granularity::matrix) {
      add_matrices(job, b, shards);
      continue;
    }
    UpdateShard shard = update_shard(job, b);
    if (shards.empty() || !join(shards.back(), shard, rounds_updates(job))) shards.push_back(std::move(shard));
  }
  return shards;
}

UpdateShape matrix_shape(const PlanOptions& options, const NamedTensor& tensor, bool rounds) {
  const int64_t rows = tensor.shape[0];
  return {.elems = tensor.elems(),
          .rows = rows,
          .cols = tensor.elems() / rows,
          .rounds = rounds,
          .product_dtype = options.update_product_dtype};
}

Cost update_cost(const Job& job, size_t bucket) {
  const OptimizerSpec& optimizer = *job.group_of(bucket).optimizer;
  const int64_t shard_elems = job.storage[bucket].shard_elems;
  const bool rounds = rounds_updates(job);
  if (optimizer.granularity == Granularity::element) return optimizer.cost({.elems = shard_elems, .rounds = rounds});
  const Bucket& b = job.layout.buckets[bucket];
  Cost most;
  for (int64_t begin = b.offset_elems; begin < b.offset_elems + b.elems; begin += shard_elems) {
    Cost cost;
    for_tensors(job, b, begin, shard_elems, [&](const NamedTensor& tensor, int64_t) {
      cost += optimizer.cost(matrix_shape(job.options, tensor, rounds));
    });
    most = {std::max(most.flops, cost.flops), std::max(most.bytes, cost.bytes)};
  }
  return most;
}

}  // namespace slipstream
