// SPDX-License-Identifier: Apache-2.0
// Least recently used slots for parameters, slots in turn for gradients, and the tasks that fill and empty them.

#include "engine/plan/passes/residency.h"

#include <algorithm>
#include <optional>

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/plan/memory.h"
#include "engine/plan/passes/wire.h"

namespace slipstream {

Slots::Lease Slots::lease(int layer, ItemId use) {
  auto tenant = std::find_if(tenants_.begin(), tenants_.end(), [&](const Tenant& t) { return t.layer == layer; });
  Lease lease;
  if (tenant == tenants_.end()) {
    tenant = std::min_element(tenants_.begin(), tenants_.end(), [](const Tenant& a, const Tenant& b) { return a.last_use < b.last_use; });
    lease.moved_in = true;
    lease.tenant_last_use = tenant->last_use;
    tenant->layer = layer;
  }
  lease.slot = static_cast<int>(tenant - tenants_.begin());
  tenant->last_use = use;
  return lease;
}

Residency::Residency(const Job& job) : job_(job) {
  if (job.options.zero_stage >= 3) slots_ = Slots(static_cast<size_t>(value_slots(job)));
  for (size_t b = 0; b < job.layout.buckets.size(); ++b)
    if (const Bucket& bucket = job.layout.buckets[b]; bucket.layer >= 0)
      buckets_of_layer_[bucket.layer].push_back(b);
    else if (bucket.persistent)
      for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p)
        if (auto& of_layer = persistent_of_layer_[job.model.parameters[job.layout.parts[p].part.parameter].layer]; of_layer.empty() || of_layer.back() != b)
          of_layer.push_back(b);
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

bool Residency::touches(const Piece& piece, size_t bucket, bool gradients) const {
  const Bucket& b = job_.layout.buckets[bucket];
  for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p) {
    const ParameterSpec& parameter = job_.model.parameters[job_.layout.parts[p].part.parameter];
    for (const Work& work : piece.works)
      for (const std::vector<Slice>* slices : {&work.reads, &work.writes})
        for (const Slice& slice : *slices)
          if (slice.buffer == (gradients ? parameter.gradient : parameter.value)) return true;
  }
  return false;
}

void Residency::enter(ItemId id, const Piece& piece, bool backward, SpineItem& item) {
  item.accumulate = item.micro_batch > 0;
  if (const auto persistent = persistent_of_layer_.find(piece.layer); backward && persistent != persistent_of_layer_.end())
    for (size_t bucket : persistent->second)
      if (item.accumulate = false; touches(piece, bucket, true)) reduce_from(bucket, -1, id, item.micro_batch);
  const auto found = buckets_of_layer_.find(piece.layer);
  if (found == buckets_of_layer_.end()) return;
  const std::vector<size_t>& buckets = found->second;
  if (!slots_.empty() && std::any_of(buckets.begin(), buckets.end(), [&](size_t b) { return touches(piece, b, false); })) {
    const Slots::Lease lease = slots_.lease(piece.layer, id);
    Slice where = slot_slice(job_, job_.ids.value_slots, lease.slot, slots_.count(), 0, job_.model.dtype);
    for (size_t bucket : buckets) {
      where.size_bytes = bytes_of(job_.layout.buckets[bucket].elems, job_.model.dtype);
      if (lease.moved_in) gathers_.push_back({bucket, where, id, lease.tenant_last_use});
      bind(bucket, where, false, item.rebinds);
      where.begin_bytes += where.size_bytes;
    }
  }
  if (!backward || job_.options.zero_stage < 2) return;
  item.accumulate = false;  // every micro-batch is reduced into the shard, which accumulates
  // By what a piece makes: a split backward makes a layer's gradients in two passes, and what runs again makes none.
  for (size_t bucket : buckets) {
    if (!touches(piece, bucket, true)) continue;
    const auto used = std::find_if(reduces_.rbegin(), reduces_.rend(), [](const Reduce& r) { return r.slot >= 0; });
    const bool again = used != reduces_.rend() && used->bucket == bucket && used->micro_batch == item.micro_batch;
    const int slot = again ? used->slot : slots_taken_++ % kGradientSlots;
    reduce_from(bucket, slot, id, item.micro_batch);
    bind(bucket, slot_slice(job_, job_.ids.gradient_slots, slot, kGradientSlots, job_.layout.buckets[bucket].elems, DType::f32), true, item.rebinds);
  }
}

void Residency::reduce_from(size_t bucket, int slot, ItemId id, int32_t micro_batch) {
  for (size_t i = reduces_.size(); i-- > 0;) {
    Reduce& last = reduces_[i];
    if (slot >= 0 ? last.slot != slot : last.bucket != bucket) continue;
    if (last.bucket == bucket && last.micro_batch == micro_batch) {
      last.last_use = id;
      return;
    }
    last.next_write = id;
    break;
  }
  reduces_.push_back({bucket, slot, micro_batch, id, id, {}});
}

void Residency::append_tasks(Plan& plan, Reduced* reduced) const {
  for (const Gather& use : gathers_) {
    const Bucket& bucket = job_.layout.buckets[use.bucket];
    std::vector<Point> to_free;
    if (use.tenant_last_use) to_free = {{*use.tenant_last_use}};
    // For ablation: not before compute needs it.
    if (!job_.options.param_gather && use.first_use > 0) to_free = {{use.first_use - 1}};
    gather(job_, plan, {.label = fmt::format("layer{}/{}", bucket.layer, use.first_use), .bucket = use.bucket, .from = job_.homes[use.bucket].working,
                        .to = use.where, .updated = {}, .to_free = to_free, .before = Point{use.first_use}});
  }
  if (!reduced) return;
  // All layers share one buffer for the shard that is on its way to being added. Order within a channel is computed, so
  // that the next reduction must wait for the addition has to be said.
  std::optional<Point> part_free;
  std::map<size_t, Point> sums;  // of each bucket: what has been added last
  std::vector<Reduce> in_order = reduces_;  // of completion
  std::stable_sort(in_order.begin(), in_order.end(), [](const Reduce& a, const Reduce& b) { return a.last_use < b.last_use; });
  for (const Reduce& use : in_order) {
    const BucketHome& home = job_.homes[use.bucket];
    const Bucket& bucket = job_.layout.buckets[use.bucket];
    const std::string label = use.slot < 0 ? fmt::format("bucket{}/{}", use.bucket, use.micro_batch) : fmt::format("layer{}/{}", bucket.layer, use.micro_batch);
    const bool adds = use.micro_batch > 0;
    const Slice part{job_.ids.gradient_part, 0, 4 * home.shard_elems};
    Reduction reduction{.label = label, .bucket = use.bucket,
                        .from = use.slot < 0 ? home.gradients : slot_slice(job_, job_.ids.gradient_slots, use.slot, kGradientSlots, bucket.elems, DType::f32),
                        .to = adds ? part : home.gradient, .ready = {use.last_use}, .not_before = {}, .before = {}};
    if (adds) reduction.not_before = part_free;
    if (use.next_write) reduction.before = Point{*use.next_write};
    Point done = reduce(job_, plan, *reduced, reduction);
    if (adds) {
      Task add;
      add.name = "add." + label;
      add.channel = job_.channel("reduce");
      add.op = Op::add;
      add.elems = home.shard_elems;
      add.bucket = static_cast<int32_t>(use.bucket);
      add.reads = {part, home.gradient};
      add.writes = {home.gradient};
      add.cost = {home.shard_elems, 12 * home.shard_elems};
      add.after = {done, sums.at(use.bucket)};
      part_free = done = append_task(plan, std::move(add));
    }
    if (job_.is_hybrid() && use.micro_batch + 1 == job_.buffers.micro_batches)
      done = reduce_across(job_, plan, *reduced, use.bucket, {use.last_use}, done);
    sums[use.bucket] = done;
    reduced->buckets[use.bucket] = {done};
  }
}

}  // namespace slipstream
