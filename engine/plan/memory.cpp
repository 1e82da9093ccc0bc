// SPDX-License-Identifier: Apache-2.0
// Places every bucket: whole on this rank, as a shard, or in slots that it only passes through.

#include "engine/plan/memory.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/core.h>

#include "engine/base/format.h"
#include "engine/base/units.h"
#include "engine/plan/saved_state.h"
#include "engine/plan/update_shards.h"

namespace slipstream {
namespace {

/// Assigns consecutive elements of a buffer, which is added when all of them are known.
class Region {
 public:
  Region(Buffers& buffers, std::string name, DType dtype, Owner owner)
      : buffers_(buffers), name_(std::move(name)), dtype_(dtype), owner_(owner) {}
  const std::string& name() const { return name_; }
  /// Takes the next `elems` elements. close() later fills in the buffer's id in `where`.
  void take(Slice& where, int64_t elems) {
    where = {0, bytes_of(used_elems_, dtype_), bytes_of(elems, dtype_)};
    used_elems_ += elems;
    slices_.push_back(&where);
  }
  void close() {
    if (slices_.empty()) return;
    const BufferId id = buffers_.add({.name = name_, .size_bytes = bytes_of(used_elems_, dtype_), .owner = owner_});
    for (Slice* slice : slices_) slice->buffer = id;
  }

 private:
  Buffers& buffers_;
  std::string name_;
  DType dtype_;
  Owner owner_;
  int64_t used_elems_ = 0;
  std::vector<Slice*> slices_;
};

Slice part_of(const Slice& whole, int index, int parts) {
  const int64_t size_bytes = whole.size_bytes / parts;
  return {whole.buffer, whole.begin_bytes + index * size_bytes, size_bytes};
}

void place_buckets(Job& job) {
  const auto ranks_of = [&](size_t bucket) { return job.placement_of(bucket).shards(job.mesh); };
  const auto index_of = [&](size_t bucket) { return job.placement_of(bucket).shard_of(job.mesh, job.options.rank); };
  const DType dtype = job.model.dtype;
  Region values(job.buffers, "parameters", dtype, Owner::parameters);
  Format travels = dtype;  // the same for all groups with shards
  for (const ParameterGroup& group : job.groups)
    if (group.placement.is_sharded()) travels = group.placement.gather_wire;
  Region value_shards(job.buffers, "parameters.shard", travels.element, Owner::parameters);
  Region gradients(job.buffers, "gradients", DType::f32, Owner::gradients);
  Region gradient_shards(job.buffers, "gradients.shard", DType::f32, Owner::gradients);
  Region masters(job.buffers, "master", DType::f32, Owner::optimizer);
  // Groups whose optimizers have a state of the same name share its buffer.
  std::vector<Region> states;
  const auto region_of = [&](const OptimizerState& state) -> Region& {
    for (Region& region : states)
      if (region.name() == state.name) return region;
    return states.emplace_back(job.buffers, state.name, state.dtype, Owner::optimizer);
  };
  Region residuals(job.buffers, "gradients.residual", DType::f32, Owner::communication);
  Region sum_residuals(job.buffers, "gradients.sum_residual", DType::f32, Owner::communication);
  const bool feeds_back = job.options.error_feedback && job.options.reduce_wire.is_scaled() && job.reduces();
  job.storage.resize(job.layout.buckets.size());
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const Bucket& bucket = job.layout.buckets[b];
    const Placement& placement = job.placement_of(b);
    BucketStorage& storage = job.storage[b];
    const bool encoded = placement.gathers_encoded();
    storage.shard_elems = bucket.elems / ranks_of(b);
    storage.shard_offset_elems = bucket.offset_elems + index_of(b) * storage.shard_elems;
    if (!placement.sharding.parameters || !bucket.unit) values.take(storage.values, bucket.elems);
    if (!placement.sharding.gradients || !bucket.unit) gradients.take(storage.gradients, bucket.elems);
    if (storage.values.size_bytes == 0 || encoded)
      value_shards.take(storage.working, encoded_bytes(storage.shard_elems, travels) / size_of(travels.element));
    // Persistent buckets are also reduced in every micro-batch, so that the sum must not share memory with the backward
    // pass.
    if (storage.gradients.size_bytes == 0 || bucket.persistent)
      gradient_shards.take(storage.gradient, storage.shard_elems);
    if (dtype != DType::f32 || encoded) masters.take(storage.master, storage.shard_elems);
    const std::vector<OptimizerState>& kinds = job.group_of(b).optimizer->states;
    storage.states.resize(kinds.size());
    for (size_t s = 0; s < kinds.size(); ++s) region_of(kinds[s]).take(storage.states[s], storage.shard_elems);
    if (!feeds_back || !placement.reduces(job.mesh)) continue;
    residuals.take(storage.residual, bucket.elems);
    if (!placement.is_sharded())
      sum_residuals.take(storage.sum_residual, bucket.elems / job.mesh.group_size(placement.sums_over));
  }
  for (Region* region : {&values, &value_shards, &gradients, &gradient_shards, &masters}) region->close();
  for (Region& region : states) region.close();
  for (Region* region : {&residuals, &sum_residuals}) region->close();
  for (size_t b = 0; b < job.storage.size(); ++b) {
    BucketStorage& storage = job.storage[b];
    if (storage.working.size_bytes == 0) storage.working = part_of(storage.values, index_of(b), ranks_of(b));
    if (storage.gradient.size_bytes == 0) storage.gradient = part_of(storage.gradients, index_of(b), ranks_of(b));
    if (storage.master.size_bytes == 0) storage.master = storage.working;
  }
}

/// Places the snapshots. Every rank of a stage has the same bytes, with room for the longest range of a rank.
void place_snapshots(Job& job) {
  job.buffers.snapshots_beside = job.options.snapshots_beside;
  if (!job.options.snapshots) return;
  std::vector<Region> regions;
  const auto region_of = [&](const SavedArray& array) -> Region& {
    const std::string name = "snapshot." + array.name;
    for (Region& region : regions)
      if (region.name() == name) return region;
    return regions.emplace_back(job.buffers, name, array.dtype, Owner::snapshot);
  };
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const std::vector<SavedArray> arrays = saved_arrays(job, b);
    job.storage[b].snapshots.resize(arrays.size());
    for (size_t i = 0; i < arrays.size(); ++i)
      region_of(arrays[i]).take(job.storage[b].snapshots[i], arrays[i].most_elems);
  }
  for (Region& region : regions) region.close();
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const std::vector<SavedArray> arrays = saved_arrays(job, b);
    for (size_t i = 0; i < arrays.size(); ++i) job.storage[b].snapshots[i].size_bytes = arrays[i].from.size_bytes;
  }
}

void place_rings(Job& job) {
  for (Ring& ring : job.rings) {
    const BufferSpec& spec = job.buffers[ring.buffer];
    ring.storage = job.buffers.add({.name = spec.name + ".slots",
                                    .size_bytes = ring.slots * job.buffers.stride_bytes(ring.buffer),
                                    .owner = Owner::communication});
  }
}

/// Makes parameters and gradients of models views of whole buckets. Those that are not resident get a view when an item
/// rebinds them to a slot.
void set_views(Job& job) {
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const Bucket& bucket = job.layout.buckets[b];
    for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p) {
      const PlacedPart& placed = job.layout.parts[p];
      if (placed.part.begin_elems > 0) continue;
      const ParameterSpec& parameter = job.model.parameters[placed.part.parameter];
      const int64_t offset = placed.offset_elems - bucket.offset_elems;
      const auto view = [&](BufferId buffer, const Slice& whole, DType dtype) {
        if (whole.size_bytes > 0)
          job.buffers.set_view(
              buffer, {whole.buffer, whole.begin_bytes + bytes_of(offset, dtype), bytes_of(parameter.elems, dtype)});
      };
      // A parameter in several buckets is contiguous, because the buckets are neighbours in one buffer.
      view(parameter.value, job.storage[b].values, job.model.dtype);
      view(parameter.gradient, job.storage[b].gradients, DType::f32);
    }
  }
}

/// Returns the elements of the largest unit: of a layer, or of an end of the model. A unit has a bucket in every group,
/// and for each of its passes if these are separate.
int64_t widest_unit(const Job& job, bool of_layers) {
  int64_t widest = 0;
  std::map<int, int64_t> elems;
  for (const Bucket& bucket : job.layout.buckets)
    if (bucket.unit && is_of_layer(job, bucket) == of_layers)
      widest = std::max(widest, elems[*bucket.unit] += bucket.elems);
  return widest;
}

void place_slots(Job& job) {
  const int64_t layer_elems = widest_unit(job, true), end_elems = widest_unit(job, false);
  const auto add = [&](const std::string& name, int64_t size_bytes) {
    return job.buffers.add({.name = name, .size_bytes = size_bytes, .owner = Owner::communication});
  };
  if (job.sharding().parameters) {
    job.ids.value_slots = add("parameters.slots", value_slots(job) * bytes_of(layer_elems, job.model.dtype));
    if (end_elems > 0) job.ids.end_values = add("parameters.end_slot", bytes_of(end_elems, job.model.dtype));
  }
  if (!job.sharding().gradients) return;
  if (end_elems > 0) job.ids.end_gradients = add("gradients.end_slot", 4 * end_elems);
  for (uint32_t g = 0; g < job.groups.size(); ++g) {
    // The widest buckets: of a layer, and of those that are reduced in every micro-batch.
    int64_t of_layer = 0, reduced = 0;
    for (const Bucket& bucket : job.layout.buckets) {
      if (bucket.group != g) continue;
      if (is_of_layer(job, bucket)) of_layer = std::max(of_layer, bucket.elems);
      if (bucket.unit || bucket.persistent) reduced = std::max(reduced, bucket.elems);
    }
    const std::string suffix = job.groups.size() > 1 ? "." + job.groups[g].name : "";
    job.ids.gradient_slots.push_back(add("gradients.slots" + suffix, kGradientSlots * 4 * of_layer));
    job.ids.gradient_parts.push_back(
        add("gradients.part" + suffix, 4 * reduced / job.groups[g].placement.shards(job.mesh)));
  }
}

/// Places the buffers of encoded data. They have the size of the largest bucket, because buckets take turns.
void place_wires(Job& job) {
  const Format wire = job.options.reduce_wire;                                    // of all groups
  const bool rounds_once = wire == DType::bf16 && !job.options.sums_by_exchange;  // the collective sums in place
  int64_t gather_bytes = 0, out_bytes = 0, in_bytes = 0, across_bytes = 0;
  for (size_t b = 0; b < job.layout.buckets.size(); ++b) {
    const int64_t elems = job.layout.buckets[b].elems;
    const Placement& placement = job.placement_of(b);
    const int ranks = job.mesh.group_size(placement.reduces_over());
    const auto parts_bytes = [&](const Format& format) { return ranks * encoded_bytes(elems / ranks, format); };
    if (placement.gathers_encoded()) gather_bytes = std::max(gather_bytes, parts_bytes(placement.gather_wire));
    if (wire == DType::f32 || ranks == 1) continue;
    const bool in_place = !placement.is_sharded() && rounds_once;
    out_bytes = std::max(out_bytes, in_place ? encoded_bytes(elems, wire) : parts_bytes(wire));
    if (!in_place) in_bytes = std::max(in_bytes, parts_bytes(wire));
    if (placement.reduces_across(job.mesh) && wire == DType::bf16)
      across_bytes = std::max(across_bytes, encoded_bytes(elems / ranks, wire));
  }
  const auto add = [&](BufferId& id, const char* name, int64_t size_bytes) {
    if (size_bytes > 0) id = job.buffers.add({.name = name, .size_bytes = size_bytes, .owner = Owner::communication});
  };
  add(job.ids.gather_wire, "wire.gather", gather_bytes);
  add(job.ids.wire_out, "wire.out", out_bytes);
  add(job.ids.wire_in, "wire.in", in_bytes);
  add(job.ids.wire_across, "wire.across", across_bytes);
  if (!rounds_once) add(job.ids.wire_across_in, "wire.across.in", across_bytes);
}

/// Returns the number of layers in use at a time: paired passes are in two.
int layers_in_use(const Job& job) {
  return std::any_of(job.actions.begin(), job.actions.end(), [](const Action& action) { return action.paired; }) ? 2
                                                                                                                 : 1;
}

}  // namespace

StateBytes state_bytes(DType dtype, Sharding sharding, const OptimizerSpec& optimizer) {
  const int64_t value = size_of(dtype), gradient = 4, master = dtype == DType::f32 ? 0 : 4,
                states = master + optimizer.state_bytes_per_elem();
  const int64_t whole =
      (sharding.parameters ? 0 : value) + (sharding.gradients ? 0 : gradient) + (sharding.states ? 0 : states);
  return {.whole = whole, .shared = value + gradient + states - whole};
}

bool is_of_layer(const Job& job, const Bucket& bucket) {
  return bucket.unit && *bucket.unit >= 0 && *bucket.unit < job.model.layers;
}

int value_slots(const Job& job) {
  std::set<int> layers;
  for (const Bucket& bucket : job.layout.buckets)
    if (is_of_layer(job, bucket)) layers.insert(*bucket.unit);
  const auto all = static_cast<int>(layers.size());
  return job.options.reshard_after_forward ? std::min(job.options.prefetch_depth + layers_in_use(job), all) : all;
}

std::string slots_remedy(const Job& job, int64_t missing_bytes) {
  const int slots = job.sharding().parameters ? value_slots(job) : 0;
  if (slots == 0) return "";
  const int64_t slot_bytes = std::max<int64_t>(1, job.buffers[job.ids.value_slots].size_bytes / slots);
  const int64_t depth = slots - layers_in_use(job) - ceil_div(missing_bytes, slot_bytes);
  const std::string costs =
      slots == 1 ? fmt::format("1 slot for gathered layers takes {}: ", format_bytes(slot_bytes))
                 : fmt::format("{} slots for gathered layers take {} each: ", slots, format_bytes(slot_bytes));
  if (depth < 0) return costs + "not even zero.prefetch_depth = 0 fits. ";
  return costs + fmt::format("{}zero.prefetch_depth = {} is the most that fits. ",
                             job.options.reshard_after_forward ? "" : "zero.reshard_after_forward = true with ", depth);
}

Slice gradient_part_slice(const Job& job, size_t bucket) {
  return {job.ids.gradient_parts[job.layout.buckets[bucket].group], 0, 4 * job.storage[bucket].shard_elems};
}

Slice slot_slice(const Job& job, BufferId slots, int slot, int count, int64_t elems, DType dtype) {
  const int64_t size_bytes = job.buffers[slots].size_bytes / count;
  return {slots, slot * size_bytes, bytes_of(elems, dtype)};
}

Slice gradient_slot_slice(const Job& job, int slot, size_t bucket) {
  const std::vector<Bucket>& buckets = job.layout.buckets;
  if (slot < kGradientSlots)
    return slot_slice(job, job.ids.gradient_slots[buckets[bucket].group], slot, kGradientSlots, buckets[bucket].elems,
                      DType::f32);
  int64_t before_elems = 0;
  for (size_t b = 0; b < bucket; ++b)
    if (buckets[b].unit == buckets[bucket].unit) before_elems += buckets[b].elems;
  return flat_slice(job.ids.end_gradients, before_elems, buckets[bucket].elems, DType::f32);
}

bool holds_copy(const Job& job, size_t bucket) {
  if (!job.has_tied_copies) return false;
  const ParameterSpec& parameter =
      job.model.parameters[job.layout.parts[job.layout.buckets[bucket].first_part].part.parameter];
  return parameter.name() == job.tied_name;  // both copies have this name
}

void place_memory(Job& job) {
  place_buckets(job);
  set_views(job);
  place_slots(job);
  place_wires(job);
  place_rings(job);
  place_snapshots(job);
  const auto add = [&](const char* name, int64_t size_bytes, Owner owner) {
    return job.buffers.add({.name = name, .size_bytes = size_bytes, .owner = owner});
  };
  JobBuffers& ids = job.ids;
  if (job.options.double_buffer) {
    ids.values = job.buffers.find("parameters");
    ids.values_next = add("parameters.next", job.buffers[ids.values].size_bytes, Owner::parameters);
  }
  ids.scalars_next = add("scalars.next", bytes_of(job.staged_scalars(), DType::f32), Owner::batch);
  ids.scalars = add("scalars", bytes_of(job.staged_scalars(), DType::f32), Owner::optimizer);
  const int64_t sums_bytes = 8 * int64_t{job.norm_parts};
  if (job.aligns_grad_reduce) ids.aligned = add("aligned", 4, Owner::communication);
  int64_t workspace_bytes = 0;
  for (const ParameterGroup& group : job.groups)
    for (uint32_t p : group.parameters)
      for (const NamedTensor& tensor : job.model.parameters[p].tensors)
        if (group.optimizer->workspace_bytes)
          workspace_bytes = std::max(workspace_bytes, group.optimizer->workspace_bytes(matrix_shape(
                                                          job.options, tensor, group.placement.rounds_updates())));
  if (workspace_bytes > 0) ids.update_workspace = add("update.workspace", workspace_bytes, Owner::scratch);
  ids.norm_parts = add("norm.parts", sums_bytes, Owner::optimizer);
  ids.norm_sums = job.norm_axis() != Axis::self ? add("norm.sums", sums_bytes, Owner::optimizer) : ids.norm_parts;
  ids.norm = add("norm", 8 * kNormDoubles, Owner::optimizer);
  ids.loss_sum = job.mesh.world() == 1 ? job.model.loss : add("loss.sum", 8, Owner::batch);
  ids.report = add("report", 8 * (1 + kNormDoubles) * kReportSlots, Owner::batch);
  ids.batch_next = job.buffers.find("batch.next");
  for (size_t b = 0; b < job.storage.size(); ++b)
    if (job.stage() == 0 && holds_copy(job, b))
      ids.tied_share = add("tied.share", 4 * job.storage[b].shard_elems, Owner::communication);
  const TiedEmbedding& tied = job.model.tied;
  if (!tied.as_rows) return;
  const int64_t index = job.mesh.index_in_group(job.tied_axis(), job.options.rank);
  const auto mine = [&](const char* name, BufferId all, int64_t size_bytes) {
    job.buffers.set_view(job.buffers.find(name), {all, index * size_bytes, size_bytes});
  };
  mine("embedding.row_ids.mine", tied.row_ids, tied.capacity * 4);
  mine("embedding.rows.mine", tied.rows, tied.capacity * tied.width * 4);
}

std::string memory_table(const Job& job, const std::vector<ExtraMemory>& beside) {
  std::vector<ExtraMemory> rows;
  for (int owner = 0; owner < kOwners; ++owner)
    if (job.buffers.is_on_device(static_cast<Owner>(owner)))
      rows.push_back({name_of(static_cast<Owner>(owner)), job.buffers.bytes(static_cast<Owner>(owner))});
  rows.insert(rows.end(), beside.begin(), beside.end());
  int64_t total_bytes = 0;
  size_t width = 14;
  for (const ExtraMemory& row : rows) {
    total_bytes += row.size_bytes;
    width = std::max(width, row.owner.size() + 1);
  }
  std::string table;
  for (const ExtraMemory& row : rows)
    if (row.size_bytes > 0) table += fmt::format("  {:<{}}{:>12}\n", row.owner, width, format_bytes(row.size_bytes));
  return table + fmt::format("  {:<{}}{:>12}\n", "total", width, format_bytes(total_bytes));
}

}  // namespace slipstream
