// SPDX-License-Identifier: Apache-2.0
// Least recently used slots for parameters, slots in turn for gradients, and the tasks that fill and empty them.

#include "engine/plan/passes/residency.h"

#include <algorithm>
#include <optional>

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/plan/memory.h"

namespace slipstream {

Residency::Residency(const Job& job) : job_(job) {
  if (job.options.zero_stage >= 3) slots_.resize(static_cast<size_t>(value_slots(job)));
  for (size_t b = 0; b < job.layout.buckets.size(); ++b)
    if (const Bucket& bucket = job.layout.buckets[b]; bucket.layer >= 0) {
      buckets_of_layer_[bucket.layer].push_back(b);
      for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p)
        bucket_of_gradient_[job.model.parameters[job.layout.parts[p].part.parameter].gradient] = b;
    }
}

std::set<size_t> Residency::gradients_of(const Piece& piece) const {
  std::set<size_t> buckets;
  for (const Work& work : piece.works)
    for (const std::vector<Slice>* slices : {&work.reads, &work.writes})
      for (const Slice& slice : *slices)
        if (const auto found = bucket_of_gradient_.find(slice.buffer); found != bucket_of_gradient_.end()) buckets.insert(found->second);
  return buckets;
}

bool Residency::reads_parameters(const Piece& piece) const {
  return std::any_of(piece.works.begin(), piece.works.end(), [&](const Work& work) {
    return std::any_of(work.reads.begin(), work.reads.end(), [&](const Slice& read) { return job_.buffers[read.buffer].owner == Owner::parameters; });
  });
}

void Residency::bind(size_t bucket, const Slice& where, bool gradients, std::vector<Rebind>& rebinds) const {
  const Bucket& b = job_.layout.buckets[bucket];
  const DType dtype = gradients ? DType::f32 : job_.model.dtype;
  for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p) {
    const PlacedPart& placed = job_.layout.parts[p];
    const ParameterSpec& parameter = job_.model.parameters[placed.part.parameter];
    rebinds.push_back({gradients ? parameter.gradient : parameter.value,
                       {where.buffer, where.begin_bytes + bytes_of(placed.offset_elems - b.offset_elems, dtype),
                        bytes_of(parameter.elems, dtype)}});
  }
}

void Residency::enter(ItemId id, const Piece& piece, bool backward, SpineItem& item) {
  item.accumulate = item.micro_batch > 0;
  const auto found = buckets_of_layer_.find(piece.layer);
  if (found == buckets_of_layer_.end()) return;
  if (!slots_.empty() && reads_parameters(piece)) {
    auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.layer == piece.layer; });
    const bool gathered = slot != slots_.end();
    if (!gathered)
      slot = std::min_element(slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) {
        return std::pair(a.used, a.last_use) < std::pair(b.used, b.last_use);
      });
    Slice where = slot_slice(job_, job_.ids.value_slots, static_cast<int>(slot - slots_.begin()), static_cast<int>(slots_.size()), 0, job_.model.dtype);
    for (size_t bucket : found->second) {
      where.size_bytes = bytes_of(job_.layout.buckets[bucket].elems, job_.model.dtype);
      if (!gathered) gathers_.push_back({bucket, where, id, slot->used, slot->last_use});
      bind(bucket, where, false, item.rebinds);
      where.begin_bytes += where.size_bytes;
    }
    slot->layer = piece.layer;
    slot->used = true;
    slot->last_use = id;
  }
  if (!backward || job_.options.zero_stage < 2) return;
  // By what a piece makes: a split backward makes a layer's gradients in two passes, and what runs again makes none.
  for (size_t bucket : gradients_of(piece)) {
    if (reduces_.empty() || reduces_.back().bucket != bucket || reduces_.back().micro_batch != item.micro_batch)
      reduces_.push_back({bucket, static_cast<int>(reduces_.size() % kGradientSlots), item.micro_batch, id, id});
    reduces_.back().last_use = id;
    item.accumulate = false;  // every micro-batch is reduced into the shard, which accumulates
    bind(bucket, slot_slice(job_, job_.ids.gradient_slots, reduces_.back().slot, kGradientSlots, job_.layout.buckets[bucket].elems, DType::f32), true, item.rebinds);
  }
}

void Residency::append_tasks(Plan& plan, Reduced* reduced) const {
  for (const Gather& gather : gathers_) {
    const BucketHome& home = job_.homes[gather.bucket];
    Task task;
    task.name = fmt::format("all_gather.layer{}/{}", job_.layout.buckets[gather.bucket].layer, gather.first_use);
    task.channel = job_.channel("gather");
    task.op = Op::all_gather;
    task.dtype = job_.model.dtype;
    task.elems = home.shard_elems;
    task.algorithm = job_.options.algorithm;
    task.bucket = static_cast<int32_t>(gather.bucket);
    task.reads = {home.working};
    task.writes = {gather.where};
    if (gather.has_tenant) task.after = {{gather.tenant_last_use}};
    task.before = Point{gather.first_use};
    append_task(plan, std::move(task));
  }
  // All layers share one buffer for the shard that is on its way to being added. Order within a channel is computed, so
  // that the next reduction must wait for the addition has to be said.
  std::optional<Point> part_free;
  std::map<size_t, Point> sums;  // of each bucket: what has been added last
  for (size_t i = 0; i < reduces_.size(); ++i) {
    const Reduce& reduce = reduces_[i];
    const BucketHome& home = job_.homes[reduce.bucket];
    const int layer = job_.layout.buckets[reduce.bucket].layer;
    Task task;
    task.name = fmt::format("reduce_scatter.layer{}/{}", layer, reduce.micro_batch);
    task.channel = job_.channel("reduce");
    task.op = Op::reduce_scatter;
    task.elems = home.shard_elems;
    task.algorithm = job_.options.algorithm;
    task.bucket = static_cast<int32_t>(reduce.bucket);
    task.reads = {slot_slice(job_, job_.ids.gradient_slots, reduce.slot, kGradientSlots, job_.layout.buckets[reduce.bucket].elems, DType::f32)};
    const Slice part{job_.ids.gradient_part, 0, 4 * home.shard_elems};
    task.writes = {reduce.micro_batch == 0 ? home.gradient : part};
    task.after = {{reduce.last_use}};
    if (reduce.micro_batch > 0 && part_free) task.after.push_back(*part_free);
    if (i + kGradientSlots < reduces_.size()) task.before = Point{reduces_[i + kGradientSlots].first_use};
    Point done = append_task(plan, std::move(task));
    if (reduce.micro_batch > 0) {
      Task add;
      add.name = fmt::format("add.layer{}/{}", layer, reduce.micro_batch);
      add.channel = job_.channel("reduce");
      add.op = Op::add;
      add.elems = home.shard_elems;
      add.bucket = static_cast<int32_t>(reduce.bucket);
      add.reads = {part, home.gradient};
      add.writes = {home.gradient};
      add.cost = {home.shard_elems, 12 * home.shard_elems};
      add.after = {done, sums.at(reduce.bucket)};
      part_free = done = append_task(plan, std::move(add));
    }
    if (reduced && job_.is_hybrid() && reduce.micro_batch + 1 == job_.buffers.micro_batches)
      done = reduce_across(job_, plan, static_cast<int>(reduce.bucket), done);
    sums[reduce.bucket] = done;
    if (reduced) reduced->buckets[reduce.bucket] = {done};
  }
}

}  // namespace slipstream
