// SPDX-License-Identifier: Apache-2.0
// Assigns the least recently used slot to parameters and slots in turn to gradients, and appends the tasks that fill
// and empty them.

#include "engine/plan/passes/residency.h"

#include <algorithm>
#include <optional>

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/plan/memory.h"
#include "engine/plan/passes/wire.h"

namespace slipstream {
namespace {

/// Returns the last item up to `use` that reads these bytes of a slot. Tenants differ in size.
std::optional<ItemId> last_read(const Plan& plan, const Slice& where, std::optional<ItemId> use) {
  if (!use) return {};
  for (ItemId id = *use + 1; id-- > 0;) {
    const std::vector<Slice>& reads = plan.spine[id].reads;
    if (std::any_of(reads.begin(), reads.end(), [&](const Slice& s) { return s.overlaps(where); })) return id;
  }
  return {};
}

}  // namespace

Residency::Residency(const Job& job) : job_(job), gradient_slots_(job.groups.size(), Slots(kGradientSlots)) {
  if (job.sharding().parameters) slots_ = Slots(static_cast<size_t>(value_slots(job))), end_slot_ = Slots(1);
  for (size_t b = 0; b < job.layout.buckets.size(); ++b)
    if (const Bucket& bucket = job.layout.buckets[b]; bucket.unit)
      buckets_of_unit_[*bucket.unit].push_back(b);
    else if (bucket.persistent)
      for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p)
        if (auto& of_layer = persistent_of_layer_[job.model.parameters[job.layout.parts[p].part.parameter].layer];
            of_layer.empty() || of_layer.back() != b)
          of_layer.push_back(b);
}

void Residency::bind(size_t bucket, const Slice& where, bool gradients, std::vector<Rebind>& rebinds) const {
  const Bucket& b = job_.layout.buckets[bucket];
  const DType dtype = gradients ? DType::f32 : job_.model.dtype;
  for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p) {
    const PlacedPart& placed = job_.layout.parts[p];
    if (placed.part.begin_elems > 0) continue;  // the parameter was handled before
    const ParameterSpec& parameter = job_.model.parameters[placed.part.parameter];
    rebinds.push_back({gradients ? parameter.gradient : parameter.value,
                       {where.buffer, where.begin_bytes + bytes_of(placed.offset_elems - b.offset_elems, dtype),
                        bytes_of(parameter.elems, dtype)}});
  }
}

bool Residency::touches(const Piece& piece, size_t bucket, bool gradients) const {
  const Bucket& b = job_.layout.buckets[bucket];
  const DType dtype = gradients ? DType::f32 : job_.model.dtype;
  for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p) {
    const GradientPart& part = job_.layout.parts[p].part;
    const ParameterSpec& parameter = job_.model.parameters[part.parameter];
    const int64_t begin_bytes = bytes_of(part.begin_elems, dtype),
                  end_bytes = bytes_of(part.begin_elems + part.elems, dtype);
    for (const Work& work : piece.works)
      for (const std::vector<Slice>* slices : {&work.reads, &work.writes})
        for (const Slice& slice : *slices)
          if (slice.buffer == (gradients ? parameter.gradient : parameter.value) && slice.begin_bytes < end_bytes &&
              begin_bytes < slice.end_bytes())
            return true;
  }
  return false;
}

void Residency::enter(ItemId id, const Piece& piece, bool backward, SpineItem& item) {
  item.accumulate = item.micro_batch > 0;
  if (const auto persistent = persistent_of_layer_.find(piece.layer);
      backward && persistent != persistent_of_layer_.end())
    for (size_t bucket : persistent->second)
      if (touches(piece, bucket, true)) {
        item.accumulate = false;
        reduce_from(bucket, -1, id, item.micro_batch);
      }
  const auto found = buckets_of_unit_.find(piece.layer);
  if (found == buckets_of_unit_.end()) return;
  const std::vector<size_t>& buckets = found->second;
  const bool of_layer = is_of_layer(job_, job_.layout.buckets[buckets.front()]);
  Slots& slots = of_layer ? slots_ : end_slot_;
  if (!slots.empty() &&
      std::any_of(buckets.begin(), buckets.end(), [&](size_t b) { return touches(piece, b, false); })) {
    const Slots::Lease lease = slots.lease(piece.layer, id);
    std::optional<ItemId> tenant_last_use;
    if (lease.previous) tenant_last_use = lease.previous->last_use;
    Slice where = slot_slice(job_, of_layer ? job_.ids.value_slots : job_.ids.end_values, lease.slot, slots.count(), 0,
                             job_.model.dtype);
    for (size_t bucket : buckets) {
      where.size_bytes = bytes_of(job_.layout.buckets[bucket].elems, job_.model.dtype);
      if (lease.moved_in) missing_[bucket] = tenant_last_use;
      // Each bucket is gathered for its own first use. The experts of a layer may arrive while attention computes.
      if (const auto missing = missing_.find(bucket); missing != missing_.end() && touches(piece, bucket, false)) {
        gathers_.push_back({bucket, where, id, missing->second});
        missing_.erase(missing);
      }
      bind(bucket, where, false, item.rebinds);
      where.begin_bytes += where.size_bytes;
    }
  }
  if (!backward || !job_.sharding().gradients) return;
  // The results of a piece decide. A split backward computes a layer's gradients in two passes, the head's gradients
  // are computed chunk by chunk, and a recomputed piece computes none.
  bool end_is_bound = false;
  for (size_t bucket : buckets) {
    if (!touches(piece, bucket, true)) continue;
    item.accumulate = false;  // every micro-batch is reduced into the shard, which accumulates
    if (!of_layer) {
      // A table may be in several neighbouring buckets.
      reduce_from(bucket, kGradientSlots, id, item.micro_batch);
      for (size_t b : buckets)
        if (!end_is_bound) bind(b, gradient_slot_slice(job_, kGradientSlots, b), true, item.rebinds);
      end_is_bound = true;
      continue;
    }
    const int64_t use = int64_t{item.micro_batch} * std::ssize(job_.layout.buckets) + static_cast<int64_t>(bucket);
    const int slot = gradient_slots_[job_.layout.buckets[bucket].group].lease(use, id).slot;
    reduce_from(bucket, slot, id, item.micro_batch);
    bind(bucket, gradient_slot_slice(job_, slot, bucket), true, item.rebinds);
  }
}

/// Do gradients of `bucket` in `slot` take the place of those of an earlier reduction? The end slot has all groups.
bool Residency::shares_place(const Reduce& earlier, size_t bucket, int slot) const {
  if (slot < 0) return earlier.bucket == bucket;
  const auto group_of = [&](size_t b) { return job_.layout.buckets[b].group; };
  return earlier.slot == slot && (slot == kGradientSlots || group_of(earlier.bucket) == group_of(bucket));
}

void Residency::reduce_from(size_t bucket, int slot, ItemId id, int32_t micro_batch) {
  for (size_t i = reduces_.size(); i-- > 0;) {
    Reduce& last = reduces_[i];
    if (!shares_place(last, bucket, slot)) continue;
    if (last.bucket == bucket && last.micro_batch == micro_batch) {
      last.last_use = id;
      return;
    }
    // The buckets of one end are neighbours, and those of the other end may overlap several of them.
    const bool end = slot == kGradientSlots;
    if (!end || gradient_slot_slice(job_, slot, last.bucket).overlaps(gradient_slot_slice(job_, slot, bucket)))
      last.next_write = last.next_write.value_or(id);
    if (!end || last.bucket == bucket) break;
  }
  reduces_.push_back({bucket, slot, micro_batch, id, id, {}});
}

std::string Residency::name_of(size_t bucket) const {
  const Bucket& of = job_.layout.buckets[bucket];
  const int unit = *of.unit;
  const bool experts = job_.model.parameters[job_.layout.parts[of.first_part].part.parameter].is_of_experts();
  if (unit >= 0 && unit < job_.model.layers) return fmt::format("layer{}{}", unit, experts ? ".experts" : "");
  const std::vector<size_t>& buckets = buckets_of_unit_.at(unit);
  return std::string(unit < 0 ? "embedding" : "head") +
         (buckets.size() > 1 ? fmt::format(".{}", bucket - buckets.front()) : "");
}

std::vector<std::vector<Point>> Residency::append_gathers(Plan& plan) const {
  std::map<Axis, std::vector<Point>> gathered;  // by the axis of the shards: the points of the previous gather
  std::vector<std::vector<Point>> of_gather;
  for (const Gather& use : gathers_) {
    std::vector<Point> to_free, held_back;
    const std::optional<ItemId> last = last_read(plan, use.where, use.tenant_last_use);
    if (last) to_free = {{*last}};
    // A tenant may have left before an item read these bytes. Then no item follows its gather.
    for (size_t g = of_gather.size(); g-- > 0 && (!last || gathers_[g].first_use > *last);)
      if (gathers_[g].where.overlaps(use.where)) to_free.push_back(of_gather[g].back());
    // The slot of embedding and head is free much earlier. Without this wait, the head's gather would start among those
    // of the first layers, and they would wait for all of it.
    std::vector<Point>& before = gathered[job_.placement_of(use.bucket).sharded_over];
    if (!is_of_layer(job_, job_.layout.buckets[use.bucket])) held_back = before;
    // For ablation, the gather does not begin before compute needs it.
    if (!job_.options.param_gather && use.first_use > 0) held_back = {{use.first_use - 1}};
    before = gather(job_, plan,
                    {.label = fmt::format("{}/{}", name_of(use.bucket), use.first_use),
                     .bucket = use.bucket,
                     .from = job_.storage[use.bucket].working,
                     .to = use.where,
                     .updated = held_back,
                     .to_free = to_free,
                     .before = Point{use.first_use}});
    of_gather.push_back(before);
  }
  return of_gather;
}

void Residency::append_tasks(Plan& plan, Reduced* reduced) const {
  const std::vector<std::vector<Point>> of_gather = append_gathers(plan);
  if (!reduced) return;
  std::map<size_t, size_t> latest;  // by bucket: its latest gather
  for (size_t g = 0; g < gathers_.size(); ++g) latest[gathers_[g].bucket] = g;
  // All reductions of a group use one buffer for the shard that is about to be added. The order within a channel is
  // computed later, so the plan must declare that the next reduction waits for the addition.
  std::vector<std::optional<Point>> part_free(job_.groups.size());
  std::map<size_t, Point> sums;             // by bucket: its latest addition
  std::vector<Reduce> in_order = reduces_;  // sorted by completion
  std::stable_sort(in_order.begin(), in_order.end(),
                   [](const Reduce& a, const Reduce& b) { return a.last_use < b.last_use; });
  for (const Reduce& use : in_order) {
    const BucketStorage& storage = job_.storage[use.bucket];
    const std::string label = use.slot < 0 ? fmt::format("bucket{}/{}", use.bucket, use.micro_batch)
                                           : fmt::format("{}/{}", name_of(use.bucket), use.micro_batch);
    const bool adds = use.micro_batch > 0;
    const Slice part = gradient_part_slice(job_, use.bucket);
    std::optional<Point>& free = part_free[job_.layout.buckets[use.bucket].group];
    Reduction reduction{.label = label,
                        .bucket = use.bucket,
                        .from = use.slot < 0 ? storage.gradients : gradient_slot_slice(job_, use.slot, use.bucket),
                        .to = adds ? part : storage.gradient,
                        .ready = {use.last_use},
                        .not_before = {},
                        .before = {}};
    if (adds) reduction.not_before = free;
    if (use.next_write) reduction.before = Point{*use.next_write};
    const Point first = next_task(plan);
    Point done = reduce(job_, plan, *reduced, reduction);
    if (adds) {
      Task add;
      add.name = "add." + label;
      add.channel = job_.channel(Role::reduce, job_.placement_of(use.bucket).reduces_over());
      add.op = Op::add;
      add.elems = storage.shard_elems;
      add.bucket = static_cast<int32_t>(use.bucket);
      add.reads = {part, storage.gradient};
      add.writes = {storage.gradient};
      add.cost = {storage.shard_elems, 12 * storage.shard_elems};
      add.after = {done, sums.at(use.bucket)};
      free = done = append_task(plan, std::move(add));
    }
    if (job_.placement_of(use.bucket).reduces_across(job_.mesh) && use.micro_batch + 1 == job_.buffers.micro_batches)
      done = reduce_across(job_, plan, *reduced, use.bucket, {use.last_use}, done);
    reduced->reductions.push_back({use.last_use, first, done});
    sums[use.bucket] = done;
    reduced->buckets[use.bucket] = {done};
    // A late weight pass may gather parameters again after their gradients are complete, and needs them before the
    // update.
    if (const auto g = latest.find(use.bucket); g != latest.end() && gathers_[g->second].first_use > use.last_use)
      reduced->buckets[use.bucket].push_back(of_gather[g->second].front());
  }
}

}  // namespace slipstream
