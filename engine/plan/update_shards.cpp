// SPDX-License-Identifier: Apache-2.0
// Computes the multipliers of elements, merges neighbouring shards, and finds the matrices of a shard.

#include "engine/plan/update_shards.h"

#include <fnmatch.h>

#include <algorithm>

#include "engine/base/check.h"

namespace slipstream {
namespace {

/// Calls visit(tensor, flat offset) for every tensor in the elements [begin, begin + elems) of the flat order.
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

/// Returns the elements [begin, begin + elems) of a shard.
Slice range_of(const Slice& shard, int64_t shard_elems, int64_t begin, int64_t elems) {
  const int64_t elem_bytes = shard.size_bytes / shard_elems;
  return {shard.buffer, shard.begin_bytes + begin * elem_bytes, elems * elem_bytes};
}

void add_matrices(const Job& job, size_t bucket, std::vector<UpdateShard>& shards) {
  const BucketStorage& storage = job.storage[bucket];
  for_tensors(job, job.layout.buckets[bucket], storage.shard_offset_elems, storage.shard_elems,
              [&](const NamedTensor& tensor, int64_t offset_elems) {
                const UpdateShape shape = matrix_shape(job.options, tensor, job.placement_of(bucket).rounds_updates());
                SLIP_ASSERT(multipliers_of(job.options, tensor.name) == nullptr);
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
                                  .spans = {}};
                for (const Slice& state : storage.states) shard.states.push_back(matrix(state));
                shards.push_back(std::move(shard));
              });
}

void add_span(std::vector<UpdateSpan>& spans, UpdateSpan span) {
  if (!spans.empty() && spans.back().begin == span.begin) spans.pop_back();
  UpdateSpan current = spans.empty() ? UpdateSpan{} : spans.back();
  current.begin = span.begin;
  if (current != span) spans.push_back(span);
}

/// Adds the multipliers of a part's tensors. `first` is the flat element at which the shard begins.
void add_spans(const Job& job, const PlacedPart& placed, int64_t first, std::vector<UpdateSpan>& spans) {
  const ParameterSpec& parameter = job.model.parameters[placed.part.parameter];
  for (const NamedTensor& tensor : parameter.tensors) {
    const int64_t begin = tensor.begin_elems - placed.part.begin_elems, end = begin + tensor.elems();
    if (end <= 0 || begin >= placed.part.elems) continue;
    UpdateSpan span{.begin = std::max<int64_t>(0, placed.offset_elems + std::max<int64_t>(0, begin) - first),
                    .weight_decay = parameter.decay ? 1.0f : 0.0f};
    if (const UpdateMultipliers* row = multipliers_of(job.options, tensor.name); row != nullptr) {
      span.learning_rate = static_cast<float>(row->learning_rate);
      if (row->weight_decay) span.weight_decay = static_cast<float>(*row->weight_decay);
    }
    add_span(spans, span);
  }
}

UpdateShard update_shard(const Job& job, size_t bucket) {
  const BucketStorage& storage = job.storage[bucket];
  UpdateShard shard{.master = storage.master,
                    .gradient = storage.gradient,
                    .states = storage.states,
                    .working = moved_to(job, storage.working),
                    .updated = moved_to(job, storage.master),
                    .elems = storage.shard_elems,
                    .spans = {}};
  // Padding after a part is included: its gradient is zero, so it stays zero.
  const Bucket& b = job.layout.buckets[bucket];
  for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p) {
    const PlacedPart& placed = job.layout.parts[p];
    const int64_t next =
        p + 1 < b.first_part + b.part_count ? job.layout.parts[p + 1].offset_elems : b.offset_elems + b.elems;
    if (next <= storage.shard_offset_elems || placed.offset_elems >= storage.shard_offset_elems + shard.elems) continue;
    add_spans(job, placed, storage.shard_offset_elems, shard.spans);
  }
  std::erase_if(shard.spans, [&](const UpdateSpan& span) { return span.begin >= shard.elems; });
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
  add_span(shard.spans, {.begin = shard.elems});
  for (UpdateSpan span : next.spans) {
    span.begin += shard.elems;
    add_span(shard.spans, span);
  }
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

const UpdateMultipliers* multipliers_of(const PlanOptions& options, const std::string& tensor) {
  for (const UpdateMultipliers& row : options.multipliers)
    if (::fnmatch(row.pattern.c_str(), tensor.c_str(), 0) == 0) return &row;
  return nullptr;
}

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
    if (shards.empty() || !join(shards.back(), shard, job.placement_of(b).rounds_updates()))
      shards.push_back(std::move(shard));
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
  const bool rounds = job.placement_of(bucket).rounds_updates();
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
