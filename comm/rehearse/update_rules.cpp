// SPDX-License-Identifier: Apache-2.0
// The values that an update, the norm and the loss of a step must be given.

#include <algorithm>

#include "comm/rehearse/stage_types.h"
#include "engine/plan/update_shards.h"

namespace slipstream::comm {

void StageTypes::require_complete(size_t bucket) {
  const BucketStorage& storage = job_.storage[bucket];
  const Bucket& b = job_.layout.buckets[bucket];
  const Placement& placement = job_.placement_of(bucket);
  for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p) {
    const PlacedPart& placed = job_.layout.parts[p];
    const ParameterSpec& parameter = job_.model.parameters[placed.part.parameter];
    const std::string& name = parameter.name();
    const int64_t begin = std::max(placed.offset_elems, storage.shard_offset_elems),
                  end = std::min(placed.offset_elems + placed.part.elems,
                                 storage.shard_offset_elems + storage.shard_elems);
    if (begin >= end) continue;
    const int64_t offset = begin - storage.shard_offset_elems;
    int64_t covered = 0;
    for (const Run& run :
         map_.read({storage.gradient.buffer, storage.gradient.begin_bytes + 4 * offset, 4 * (end - begin)})) {
      if (run.begin > covered) break;
      covered = run.end;
      const Type& type = run.type;
      if (type.kind == Kind::any) continue;
      if (type.kind != Kind::gradient) refuse(name, kAllAxes, fmt::format("has {} for a gradient", words(type)));
      if (type.first != begin + run.begin / 4)
        refuse(name, kElements, fmt::format("has the gradient of {} for its own", tensor_at(type.first)));
      Terms wanted;
      for (const int32_t use : shared_.uses[name])
        wanted.push_back({.use = use, .micro_batch = 0, .micro_batch_end = job_.buffers.micro_batches});
      if (const Terms& found = shared_.pool[type.terms]; found != wanted) {
        for (const Term& term : wanted) {
          int32_t next = 0;
          for (const Term& other : found)
            if (other.use == term.use && other.is_whole() && other.micro_batch == next) next = other.micro_batch_end;
          if (next == term.micro_batch_end) continue;
          const bool none = std::none_of(found.begin(), found.end(), [&](const Term& t) { return t.use == term.use; });
          if (none)
            refuse(name, kUses,
                   fmt::format("has a gradient without its use as {}", term.use == 0 ? "the output" : "the embedding"));
          refuse(name, kMicroBatches, fmt::format("has a gradient without all rows of micro-batch {}", next));
        }
        refuse(name, kUses, "has a gradient of a use that the model does not declare");
      }
      if (type.sender_axis != Axis::self || !is_complete(type, kTokenRanks))
        refuse(name, name_of(placement.sums_over), fmt::format("has a gradient that is {}", sum_text(type)));
      if (type.shard != placement.sharded_over)
        refuse(name, name_of(placement.sharded_over),
               fmt::format("has a gradient in parts over {} for one in parts over {}", name_of(type.shard),
                           name_of(placement.sharded_over)));
      const Split& split = parameter.tensors.front().split;
      const Share held = split.parts == 1 ? Share{} : part(Axis::tensor, split.dim == 0 ? Dim::rows : Dim::columns);
      if (type.tensor != held) refuse(name, name_of(Axis::tensor), fmt::format("has {} at its update", words(type)));
      if (type.mean_over != shared_.tokens)
        refuse(name, kTokens,
               fmt::format("has a gradient of a mean over {} tokens, but the step has {}", type.mean_over,
                           shared_.tokens));
    }
    if (covered < 4 * (end - begin))
      refuse(name, kElements, "has a gradient of which some elements were never written");
  }
}

void StageTypes::sum_squares(const Item& item) {
  const auto bucket = static_cast<size_t>(item.bucket);
  require_complete(bucket);
  const Bucket& b = job_.layout.buckets[bucket];
  for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p) {
    const PlacedPart& placed = job_.layout.parts[p];
    if (placed.norm_index < 0) continue;
    map_.write({job_.ids.norm_parts, int64_t{placed.norm_index} * 8, 8},
               Type{.kind = Kind::squares,
                    .group = static_cast<int16_t>(b.group),
                    .stage = static_cast<int16_t>(job_.stage()),
                    .is_split = job_.model.parameters[placed.part.parameter].is_split()});
  }
}

/// Does exactly one of the ranks that a sum over `axis` adds count each part that this stage has? Every group of the
/// axis must have all parts.
void StageTypes::require_counted_once(const Type& squares, Axis axis) {
  const bool split = squares.is_split;
  const ParameterGroup& group = job_.groups[static_cast<size_t>(squares.group)];
  if (!counted_once_.emplace(axis, squares.group, split).second) return;
  const auto p = std::find_if(group.parameters.begin(), group.parameters.end(),
                              [&](uint32_t each) { return job_.model.parameters[each].is_split() == split; });
  const ParameterSpec& parameter = job_.model.parameters[*p];
  std::map<int, std::map<std::pair<int, int>, int>> counts;  // by first rank of the group, shard and part
  for (int rank = 0; rank < job_.mesh.world(); ++rank) {
    if (job_.mesh.coordinates(rank).pipeline != job_.stage()) continue;
    const std::pair key{group.placement.shard_of(job_.mesh, rank), job_.part_of(parameter, rank)};
    counts[job_.mesh.group(axis, rank).front()][key] += job_.counts_squares_of(group, parameter, rank) ? 1 : 0;
  }
  const int parts = group.placement.shards(job_.mesh) * job_.parts_of(parameter);
  for (const auto& [first, of_group] : counts) {
    for (const auto& [part, times] : of_group)
      if (times != 1)
        refuse(parameter.name(), name_of(axis),
               fmt::format("is counted {} times in the norm, which is summed over {}", times, name_of(axis)));
    if (std::ssize(of_group) != parts)
      refuse(parameter.name(), name_of(axis),
             fmt::format("has {} parts, of which the norm, summed over {}, counts {}", parts, name_of(axis),
                         of_group.size()));
  }
}

void StageTypes::clip(const Item& item) {
  const Slice squares = job_.buffers.whole(job_.ids.norm_sums);
  int64_t covered = 0;
  for (const Run& run : map_.read(squares)) {
    if (run.begin > covered || run.type.kind != Kind::squares) break;
    covered = run.end;
    if (run.type.summed == 0) require_counted_once(run.type, Axis::self);
  }
  if (covered < squares.size_bytes) {
    std::string name = fmt::format("part {} of the model", covered / 8);
    for (const PlacedPart& placed : job_.layout.parts)
      if (placed.norm_index == covered / 8) name = job_.model.parameters[placed.part.parameter].name();
    refuse(name, name_of(job_.norm_axis()), "is missing in the norm");
  }
  if (job_.options.skips) require_losses(item.reads.at(1));
  map_.write(item.writes[0], Type{.kind = Kind::scalar});
  for (size_t i = 1; i < item.writes.size(); ++i) map_.write(item.writes[i], Type{.kind = Kind::clip_factor});
}

void StageTypes::update(const Item& item) {
  const ParameterGroup& group = job_.groups[static_cast<size_t>(item.group)];
  if (job_.options.clip && group.optimizer->start == UpdateStart::after_clip)
    if (uniform(clip_factor_of(job_, group)).kind != Kind::clip_factor)
      refuse(job_.model.parameters[group.parameters.at(0)].name(), kSteps,
             "is updated before the clip factor of this step is known");
  for (size_t b = 0; b < job_.storage.size(); ++b) {
    if (item.bucket >= 0 ? item.bucket != static_cast<int32_t>(b)
                         : item.group != static_cast<int32_t>(job_.layout.buckets[b].group))
      continue;
    require_complete(b);
    const BucketStorage& storage = job_.storage[b];
    const auto require = [&](const Slice& slice, const char* name) {
      require_values(map_.read(slice), slice, storage.shard_offset_elems, 0, name);
    };
    require(swapped(storage.master), "the master weights");
    for (const Slice& state : storage.states) require(state, "the optimizer's states");

    const Type updated{.kind = Kind::weight,
                       .shard = job_.placement_of(b).sharded_over,
                       .version = 1,
                       .first = storage.shard_offset_elems,
                       .elem_bytes = 4};
    map_.write(next(storage.master), updated);
    for (const Slice& state : storage.states) {
      Runs runs = map_.read(state);
      for (Run& run : runs) run.type.version = 1;
      map_.write(state, runs);
    }
    if (!job_.placement_of(b).rounds_updates()) continue;
    Type rounded = updated;
    rounded.elem_bytes = 2;
    if (job_.placement_of(b).gathers_encoded())
      wires_[{storage.working.buffer, storage.working.begin_bytes}] = {{0, storage.shard_elems, rounded}};
    else
      map_.write(next(storage.working), rounded);
  }
}

void StageTypes::require_losses(const Slice& slice) {
  const Type type = uniform(slice);
  const Terms wanted{{.micro_batch_end = job_.buffers.micro_batches}};
  if (type.kind != Kind::losses || shared_.pool[type.terms] != wanted)
    refuse("the loss", kTokens, fmt::format("does not contain every token once: {}", words(type)));
  if (!is_complete(type, kTokenRanks)) refuse("the loss", name_of(kTokenRanks), fmt::format("is {}", sum_text(type)));
  if (!type.tensor.is_complete()) refuse("the loss", name_of(Axis::tensor), "is not summed over tensor");
}

}  // namespace slipstream::comm
