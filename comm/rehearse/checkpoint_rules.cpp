// SPDX-License-Identifier: Apache-2.0
// What a checkpoint must be given: every array after the same step, and each element once.

#include <algorithm>

#include "comm/rehearse/stage_types.h"

namespace slipstream::comm {

const std::vector<StageTypes::Saved>& StageTypes::saved() {
  if (!saved_.empty()) return saved_;
  for (size_t b = 0; b < job_.storage.size(); ++b) {
    const BucketStorage& storage = job_.storage[b];
    const std::vector<SavedArray> arrays = saved_arrays(job_, b);
    for (size_t i = 0; i < arrays.size(); ++i) {
      const SavedArray& array = arrays[i];
      Saved& saved = saved_.emplace_back(Saved{.array = array, .claimed = {}, .snapshot = {}, .kept = {}});
      saved.claimed = array.is_residual ? residual_type(b, array.from == storage.sum_residual)
                                        : held_type(b, static_cast<int>(i) - 1, array.dtype);
      saved.claimed.first = array.range.begin_elems;
      if (i < storage.snapshots.size()) saved.snapshot = storage.snapshots[i];
      if (i < storage.kept.size()) saved.kept = storage.kept[i];
    }
  }
  return saved_;
}

/// The type of a bucket's shard between two steps: of its master weights, or of a state of its optimizer.
Type StageTypes::held_type(size_t bucket, int state, DType dtype) const {
  return {.kind = state < 0 ? Kind::weight : Kind::state,
          .shard = job_.placement_of(bucket).sharded_over,
          .state = static_cast<int16_t>(state),
          .first = job_.storage[bucket].shard_offset_elems,
          .elem_bytes = static_cast<int8_t>(size_of(dtype))};
}

/// What rounding has removed from a bucket's gradients, or from their sum.
Type StageTypes::residual_type(size_t bucket, bool of_sum) const {
  const Axis over = job_.placement_of(bucket).sums_over;
  const int64_t first = job_.layout.buckets[bucket].offset_elems,
                part = job_.storage[bucket].sum_residual.size_bytes / size_of(DType::f32);
  return {.kind = Kind::residual,
          .summed = of_sum ? bit_of(over) : uint16_t{0},
          .first = first + (of_sum ? index_on(over) * part : 0),
          .elem_bytes = static_cast<int8_t>(size_of(DType::f32))};
}

/// Do these bytes hold what a checkpoint takes them for?
void StageTypes::require_saved(const Saved& saved, const Runs& runs) {
  int64_t end = 0;
  for (const Run& run : runs) {
    if (run.begin > end) break;
    end = run.end;
    const Type& type = run.type;
    Type claimed = moved(saved.claimed, run.begin);
    if (claimed.kind != Kind::residual) claimed.version = kind_ == PlanKind::train ? 1 : 0;
    if (type.shard == Axis::self) claimed.shard = Axis::self;  // all of it instead of a part
    if (type == claimed) continue;
    const char* axis = type.shard != claimed.shard       ? name_of(claimed.shard)
                       : type.summed != claimed.summed   ? name_of(kTokenRanks)
                       : type.kind == Kind::gradient     ? name_of(kTokenRanks)
                       : type.tensor != claimed.tensor   ? name_of(Axis::tensor)
                       : type.version != claimed.version ? kSteps
                                                         : kElements;
    const std::string &name = saved.array.name, own = tensor_at(claimed.first);
    if (type.elem_bytes > 0 && type.elem_bytes != claimed.elem_bytes)
      refuse(own, axis,
             fmt::format("is saved as {}, but its memory has {} of {} bytes", name, words(type), type.elem_bytes));
    if (type.first >= 0 && type.first != claimed.first)
      refuse(own, kElements,
             fmt::format("is saved as {}, but its memory has another part of {}", name, tensor_at(type.first)));
    refuse(own, axis,
           fmt::format("is saved as {}, which is {}, but its memory has {}", name, words(claimed), words(type)));
  }
  if (end < saved.array.from.size_bytes)
    refuse(tensor_at(saved.claimed.first + end / saved.claimed.elem_bytes), kElements,
           fmt::format("is saved as {}, but nothing complete was written there", saved.array.name));
}

void StageTypes::snapshot(const Item& item) {
  const Slice& to = item.writes[0];
  const auto found = std::find_if(saved().begin(), saved().end(),
                                  [&](const Saved& each) { return each.snapshot == to || each.kept == to; });
  if (found == saved().end() || item.reads[0].size_bytes != to.size_bytes)
    refuse(buffer_name(item.reads[0]), kElements,
           fmt::format("is copied to {}, but no array has this place", buffer_name(to)));
  const Runs runs = map_.read(item.reads[0]);
  require_saved(*found, runs);
  map_.write(to, runs);
}

/// Has a slot all arrays? The other rank's copy stands for the one that this rank receives.
void StageTypes::require_kept(BufferId slot) {
  for (const Saved& each : saved()) {
    left_ = {slot, each.kept.begin_bytes, each.kept.size_bytes};
    require_saved(each, map_.read(left_));
  }
}

void StageTypes::seal(const Item& item) {
  require_kept(job_.keeping.own);
  map_.write(item.writes[0], Type{.kind = Kind::header});
}

/// Ranks of all stages exchange the same bytes at once, so the own slot stands for the one of the sender.
void StageTypes::keep(const Task& task) {
  const Axis axis = job_.channels[task.channel].axis;
  if (task.op != Op::exchange) return require_both_kept();
  const Slice &from = task.reads[0], &to = task.writes[0];
  const int n = size_of_axis(axis);
  if ((task.peer - job_.keeping.to_holder) % n != 0 || job_.keeping.to_holder % n == 0)
    refuse(buffer_name(from), name_of(axis), "goes to another rank than the one that holds the second copy");
  if (from.buffer != job_.keeping.own || to.buffer != job_.keeping.peer || from.begin_bytes != to.begin_bytes ||
      from.size_bytes != to.size_bytes)
    refuse(buffer_name(from), kElements, "arrives at another place of the slot");
  const Runs runs = map_.read(from);
  if (!runs.empty() && runs[0].type.kind == Kind::header) require_kept(job_.keeping.peer);
  map_.write(to, runs);
}

void StageTypes::require_both_kept() {
  std::vector<BufferId> slots{job_.keeping.own};
  if (job_.keeping.to_holder != 0) slots.push_back(job_.keeping.peer);
  for (const BufferId slot : slots) {
    require_kept(slot);
    if (const Runs runs = map_.read({slot, 0, 1}); runs.empty() || runs[0].type.kind != Kind::header)
      refuse(job_.buffers[slot].name, kElements, "has no header that states that it is complete");
  }
}

/// A checkpoint takes ranks for copies of each other and saves each element of one of them. Do they hold the same, and
/// does one, and only one, save it?
void StageTypes::require_saved_once() {
  std::set<std::pair<uint32_t, bool>> seen;  // groups, and whether tensor ranks hold parts
  for (size_t b = 0; b < job_.storage.size(); ++b) {
    const Bucket& bucket = job_.layout.buckets[b];
    for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p) {
      const ParameterSpec& parameter = job_.model.parameters[job_.layout.parts[p].part.parameter];
      if (!parameter.is_copy && seen.emplace(bucket.group, parameter.is_split()).second)
        require_saved_once(b, parameter);
    }
  }
}

void StageTypes::require_saved_once(size_t bucket, const ParameterSpec& parameter) {
  const Placement& placement = job_.placement_of(bucket);
  const auto refused = [&](Axis axis, const std::string& fault) {
    throw Refused{{plan_.kind, "a checkpoint", job_.stage(), parameter.name(), name_of(axis), fault}};
  };
  // Ranks with the same experts differ only along expert_data, which is a factor of the ranks with other tokens.
  const Axis summed = parameter.is_of_experts() ? kTokenRanks : placement.sums_over;
  std::map<std::pair<int, int>, int> holders;             // by shard and part of the parameter: the first
  std::map<int, std::map<int64_t, SavedRange>> saved_by;  // by part of the parameter, and by begin
  for (int rank = 0; rank < job_.mesh.world(); ++rank) {
    const Coordinates at = job_.mesh.coordinates(rank);
    if (at.pipeline != job_.stage()) continue;
    const int part = job_.part_of(parameter, rank);
    const Coordinates first =
        job_.mesh.coordinates(holders.try_emplace({placement.shard_of(job_.mesh, rank), part}, rank).first->second);
    for (const MeshAxis& row : kMeshAxes)
      if (at.*row.at != first.*row.at && !Mesh::contains(summed, row.axis) && row.axis != Axis::tensor)
        refused(row.axis, "would be saved once for ranks whose gradients are not summed together");
    const SavedRange range = saved_range(job_, bucket, rank);
    if (range.elems > 0 && is_saved(job_, parameter, rank) && !saved_by[part].emplace(range.begin_elems, range).second)
      refused(placement.sums_over, "would be saved by two ranks");
  }
  const int64_t begin = job_.layout.buckets[bucket].offset_elems, elems = job_.layout.buckets[bucket].elems;
  for (int part = 0; part < job_.parts_of(parameter); ++part) {
    int64_t end = begin;
    for (const auto& [first, range] : saved_by[part]) {
      if (first != end) break;
      end += range.elems;
    }
    if (end != begin + elems) refused(placement.copied_over, "has elements that no rank, or two ranks would save");
  }
}

}  // namespace slipstream::comm
