// SPDX-License-Identifier: Apache-2.0
// The rules of tasks: collectives, and local work between the works of a model.

#include <algorithm>
#include <utility>

#include "comm/rehearse/stage_types.h"
#include "engine/base/format.h"

namespace slipstream::comm {
namespace {

/// Runs in elements of the flat order, or in bytes where a type has no place there.
Runs in_elements(Runs runs) {
  for (Run& run : runs)
    if (run.type.elem_bytes > 0) run.begin /= run.type.elem_bytes, run.end /= run.type.elem_bytes;
  return runs;
}

/// Runs in bytes of a slice whose elements have `elem_bytes`.
Runs in_bytes(Runs runs, int64_t elem_bytes) {
  for (Run& run : runs)
    if (run.type.elem_bytes > 0) {
      run.begin *= elem_bytes, run.end *= elem_bytes;
      run.type.elem_bytes = static_cast<int8_t>(elem_bytes);
    }
  return runs;
}

bool has_place(const Runs& runs) {
  return std::any_of(runs.begin(), runs.end(), [](const Run& run) { return run.type.elem_bytes > 0; });
}

}  // namespace

Type StageTypes::summed(Type type, Axis axis) {
  const auto name = [&] { return type.first >= 0 ? tensor_at(type.first) : words(type); };
  const auto twice = [&](Axis over) {
    refuse(
        name(), name_of(over),
        fmt::format("is already complete over {}: its terms would count {} times", name_of(over), size_of_axis(over)));
  };
  if (type.kind == Kind::zero) return type;
  if (type.kind == Kind::squares) {
    if (type.summed != 0) twice(axis);
    require_counted_once(type, axis);
    type.summed = bit_of(axis);
    return type;
  }
  if (type.kind == Kind::tally) {
    if (axis != Axis::context)
      refuse(name(), name_of(axis), "counts tokens of other sequences on the ranks of this axis");
    if (type.context.is_complete()) twice(axis);
    type.context = {};
    return type;
  }
  if (Mesh::contains(axis, Axis::tensor) && size_of_axis(Axis::tensor) > 1) {
    if (type.tensor.dim != Dim::whole)
      refuse(name(), name_of(Axis::tensor), fmt::format("is summed over parts: {}", words(type)));
    if (type.tensor.is_complete()) twice(Axis::tensor);
    type.tensor = {};
    if (axis == Axis::tensor) return type;
  }
  if (type.kind != Kind::gradient && type.kind != Kind::losses)
    refuse(name(), name_of(axis),
           fmt::format("are {}, of which the ranks of {} have different rows", words(type), name_of(axis)));
  if (type.kind == Kind::gradient && job_.mesh.joins_stages(axis))
    refuse(name(), name_of(axis), "is summed over stages that have other tensors");
  if (type.sender_axis != Axis::self)
    refuse(name(), name_of(axis), "is a single rank's addend, which no sum has joined");
  const Axis terms = Mesh::contains(axis, kTokenRanks) ? kTokenRanks : axis;
  if (size_of_axis(terms) == 1) return type;
  if (!Mesh::contains(kTokenRanks, terms)) refuse(name(), name_of(axis), "has no terms on the ranks of this axis");
  if (is_complete(type, kTokenRanks)) twice(axis);
  for (size_t a = 0; a < kAxes; ++a)
    if ((type.summed >> a & 1) != 0 && meet_twice(terms, static_cast<Axis>(a)))
      refuse(name(), name_of(axis),
             fmt::format("is {}: terms would count twice over {}", sum_text(type), name_of(axis)));
  type.summed |= bit_of(terms);
  if (is_complete(type, kTokenRanks)) type.summed = bit_of(kTokenRanks);
  return type;
}

Runs StageTypes::summed(Runs runs, Axis axis) {
  for (Run& run : runs) run.type = summed(run.type, axis);
  return runs;
}

Runs StageTypes::own_part(const Runs& runs, Axis axis, int64_t elems) {
  const int64_t begin = index_on(axis) * elems;
  Runs part;
  for (const Run& run : runs) {
    if (run.type.shard != Axis::self)
      refuse(tensor_at(run.type.first), name_of(axis), "is scattered although it is one part already");
    const int64_t from = std::max(run.begin, begin), to = std::min(run.end, begin + elems);
    if (from >= to) continue;
    Type type = run.type;
    type.first += from - run.begin;
    type.shard = axis;
    part.push_back({from - begin, to - begin, type});
  }
  return part;
}

/// The type of a part after a gather has joined it with the others. `nested`: it is a part of one part.
Type StageTypes::gathered(Type type, Axis axis, bool nested) {
  if (type.shard != axis && !nested)
    refuse(tensor_at(type.first), name_of(axis),
           fmt::format("is gathered from ranks that do not hold its parts: {}", words(type)));
  if (type.kind == Kind::gradient && (type.summed & (bit_of(axis) | bit_of(kTokenRanks))) == 0)
    refuse(tensor_at(type.first), name_of(axis), fmt::format("is gathered before its sum: {}", sum_text(type)));
  if (type.shard == axis) type.shard = Axis::self;
  return type;
}

Runs StageTypes::all_parts(const Runs& runs, Axis axis, int64_t elems) {
  Runs all;
  for (int rank = 0; rank < size_of_axis(axis); ++rank)
    for (Run run : runs) {
      run.type = gathered(run.type, axis, false);
      run.begin += rank * elems, run.end += rank * elems;
      run.type.first += (rank - index_on(axis)) * elems;
      all.push_back(run);
    }
  return all;
}

Type StageTypes::sum(const Type& a, const Type& b) {
  if (a.kind == Kind::zero || a.kind == Kind::none) return b;
  if (b.kind == Kind::zero || b.kind == Kind::none || a.kind == Kind::any) return a;
  if (b.kind == Kind::any) return b;

  const std::string name = a.first >= 0 ? tensor_at(a.first) : b.first >= 0 ? tensor_at(b.first) : words(a);
  if (a.kind == Kind::squares && b.kind == Kind::squares)
    refuse(name, name_of(Axis::pipeline), fmt::format("are counted by stage {} and by stage {}", a.stage, b.stage));
  if (a.kind != b.kind || (a.kind != Kind::gradient && a.kind != Kind::losses))
    refuse(name, kAllAxes, fmt::format("is a sum of {} and {}", words(a), words(b)));
  if (a.first >= 0 && b.first >= 0 && a.first != b.first)
    refuse(name, kElements, fmt::format("is a sum of different elements, of {} and of {}", name, tensor_at(b.first)));
  if (a.summed != b.summed || a.sender_axis != b.sender_axis || a.sender != b.sender || a.shard != b.shard)
    refuse(name, name_of(kTokenRanks), fmt::format("is a sum of {} and {}", words(a), words(b)));
  if (a.tensor != b.tensor)
    refuse(name, name_of(Axis::tensor), fmt::format("is a sum of {} and {}", words(a), words(b)));
  if (a.mean_over != b.mean_over)
    refuse(name, kTokens,
           fmt::format("is a sum of gradients of means over {} and over {} tokens", a.mean_over, b.mean_over));
  const std::optional<int32_t> terms = shared_.pool.sum(a.terms, b.terms);
  if (!terms)
    refuse(name, kMicroBatches, fmt::format("would contain micro-batch {} twice", shared_.pool.twice.micro_batch));
  Type type = a.first >= 0 ? a : b;
  type.terms = *terms;
  return type;
}

Runs StageTypes::added(const std::vector<Runs>& lists) {
  std::vector<int64_t> cuts;
  for (const Runs& runs : lists)
    for (const Run& run : runs) cuts.push_back(run.begin), cuts.push_back(run.end);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  Runs all;
  std::vector<size_t> next(lists.size(), 0);
  for (size_t c = 0; c + 1 < cuts.size(); ++c) {
    Type type;
    for (size_t l = 0; l < lists.size(); ++l) {
      const Runs& runs = lists[l];
      while (next[l] < runs.size() && runs[next[l]].end <= cuts[c]) ++next[l];
      if (next[l] == runs.size() || runs[next[l]].begin > cuts[c]) continue;
      Type other = runs[next[l]].type;
      if (other.first >= 0) other.first += cuts[c] - runs[next[l]].begin;
      type = sum(type, other);
    }
    if (type.kind != Kind::none) all.push_back({cuts[c], cuts[c + 1], type});
  }
  return all;
}

/// Of a whole bucket, only its parameters count: padding in a slot has what an earlier tenant left there.
Runs StageTypes::flat_runs(const Slice& slice, int32_t bucket) {
  const Runs all = in_elements(map_.read(slice));
  if (bucket < 0 || !has_place(all)) return all;
  const Bucket& b = job_.layout.buckets[static_cast<size_t>(bucket)];
  if (slice.size_bytes != 4 * b.elems) return all;
  Runs runs;
  for (uint32_t p = b.first_part; p < b.first_part + b.part_count; ++p) {
    const PlacedPart& placed = job_.layout.parts[p];
    const int64_t begin = placed.offset_elems - b.offset_elems, end = begin + placed.part.elems;
    for (Run run : all) {
      const int64_t from = std::max(run.begin, begin), to = std::min(run.end, end);
      if (from >= to) continue;
      run.type.first += from - run.begin;
      runs.push_back({from, to, run.type});
    }
  }
  return runs;
}

void StageTypes::encode(const Task& task) {
  const int64_t part_bytes = encoded_bytes(task.elems, task.format);
  if (const auto found = parts_.find({task.reads[0].buffer, task.reads[0].begin_bytes});
      found != parts_.end() && task.writes[0].size_bytes == part_bytes)
    parts_[{task.writes[0].buffer, task.writes[0].begin_bytes}] = std::exchange(found->second, {});
  const Runs runs = flat_runs(task.reads[0], task.bucket);
  if (!runs.empty() && runs[0].type.kind == Kind::gradient && task.bucket >= 0) {
    const BucketStorage& storage = job_.storage[static_cast<size_t>(task.bucket)];
    const bool again = runs[0].type.summed != 0 && storage.sum_residual.size_bytes > 0;
    const Slice residual = !task.format.is_scaled() ? Slice{} : again ? storage.sum_residual : storage.residual;
    const bool owed = residual.size_bytes > 0;
    if (owed != (task.reads.size() > 1) || (owed && (task.reads.back() != residual || task.writes.back() != residual)))
      refuse(tensor_at(runs[0].type.first), kSteps,
             owed ? "loses what rounding removes: it is neither kept nor added to a later gradient"
                  : "would receive a remainder that is not its own");
  }
  for (int64_t k = 0; k * part_bytes < task.writes[0].size_bytes; ++k) {
    Runs& part = wires_[{task.writes[0].buffer, task.writes[0].begin_bytes + k * part_bytes}];
    part.clear();
    for (const Run& run : runs) {
      const int64_t from = std::max(run.begin, k * task.elems), to = std::min(run.end, (k + 1) * task.elems);
      if (from >= to) continue;
      Type type = run.type;
      type.first += from - run.begin;
      part.push_back({from - k * task.elems, to - k * task.elems, type});
    }
  }
}

void StageTypes::decode(const Task& task) {
  const int64_t part_bytes = encoded_bytes(task.elems, task.format), count = task.reads[0].size_bytes / part_bytes;
  Runs all;
  for (int64_t k = 0; k < count; ++k)
    for (Run run : wires_[{task.reads[0].buffer, task.reads[0].begin_bytes + k * part_bytes}]) {
      run.begin += k * task.elems, run.end += k * task.elems;
      all.push_back(run);
    }
  map_.write(task.writes[0], in_bytes(all, task.writes[0].size_bytes / (count * task.elems)));
}

void StageTypes::sum_parts(const Task& task) {
  const int64_t part_bytes = encoded_bytes(task.elems, task.format), count = task.reads[0].size_bytes / part_bytes;
  const Axis axis = job_.channels[task.channel].axis;
  const int n = size_of_axis(axis);
  std::set<int> senders;
  for (int64_t k = 0; k < count; ++k)
    for (const Run& run : wires_[{task.reads[0].buffer, task.reads[0].begin_bytes + k * part_bytes}]) {
      if (run.type.sender_axis != axis)
        refuse(tensor_at(run.type.first), name_of(axis), "is added from a part that no rank of this axis has sent");
      senders.insert((run.type.sender % n + n) % n);
    }
  // What this rank adds up is its own part of what it has sent; so it is on every rank.
  Parts sums = parts_[{task.reads[0].buffer, task.reads[0].begin_bytes}];
  for (Runs& sum : sums) {
    if (!sum.empty() && !senders.empty() && std::ssize(senders) != n)
      refuse(tensor_at(sum[0].type.first), name_of(axis),
             fmt::format("is a sum of the parts of {} of {} ranks", senders.size(), n));
    sum = summed(sum, axis);
    for (Run& run : sum)
      if (run.type.shard == Axis::self) run.type.shard = axis;
  }
  const Runs own = sums.empty() ? Runs{} : sums[static_cast<size_t>(index_on(axis))];
  map_.write(task.writes[0], in_bytes(own, 4));
  parts_[{task.writes[0].buffer, task.writes[0].begin_bytes}] = std::move(sums);
}

const BucketStorage* StageTypes::storage_of(const std::string& tensor) const {
  for (size_t b = 0; b < job_.layout.buckets.size(); ++b)
    if (job_.model.parameters[job_.layout.parts[job_.layout.buckets[b].first_part].part.parameter].name() == tensor)
      return &job_.storage[b];
  return nullptr;
}

/// The elements of a shard that belong to no parameter.
Runs StageTypes::padding_of(const BucketStorage& storage) const {
  Runs padding;
  int64_t at = storage.shard_offset_elems;
  const int64_t end = at + storage.shard_elems;
  const auto add = [&](int64_t to) {
    if (at < to) padding.push_back({at - storage.shard_offset_elems, to - storage.shard_offset_elems, {}});
  };
  for (const PlacedPart& placed : job_.layout.parts) {
    if (placed.offset_elems + placed.part.elems <= at || placed.offset_elems >= end) continue;
    add(placed.offset_elems);
    at = std::max(at, placed.offset_elems + placed.part.elems);
  }
  add(end);
  return padding;
}

void StageTypes::send(const Task& task) {
  const Channel& channel = job_.channels[task.channel];
  const int n = size_of_axis(channel.axis), me = index_on(channel.axis);
  Shared::Sent sent{map_.read(task.reads[0]), ""};
  for (const Run& run : sent.runs)
    if (run.type.first >= 0) sent.tensor = tensor_at(run.type.first);
  shared_.sent[{wire_of(channel.role), {me, ((me + task.peer) % n + n) % n}}].push_back(std::move(sent));
}

bool StageTypes::recv(const Task& task) {
  const Channel& channel = job_.channels[task.channel];
  const int n = size_of_axis(channel.axis), me = index_on(channel.axis);
  auto& queue = shared_.sent[{wire_of(channel.role), {((me + task.peer) % n + n) % n, me}}];
  if (queue.empty()) return false;
  const Shared::Sent sent = std::move(queue.front());
  queue.pop_front();
  if (channel.role != Role::tied) {
    map_.write(task.writes[0], sent.runs);
    return true;
  }
  // A single tensor is alone in its bucket. The ranks of the stages may have different shards of it, and one of them
  // may have only padding.
  if (sent.runs.empty()) {
    map_.write(task.writes[0], Type{.kind = Kind::any});
    return true;
  }
  Type type = sent.runs[0].type;
  for (const Run& run : sent.runs)
    if (run.type != moved(type, run.begin - sent.runs[0].begin))
      refuse(sent.tensor, name_of(channel.axis), "is sent with parts of different types");
  const BucketStorage* storage = storage_of(sent.tensor);
  if (type.kind == Kind::gradient && !storage)
    refuse(sent.tensor, name_of(channel.axis), "is received, but this stage has no such tensor");
  if (storage) type.first = storage->shard_offset_elems;
  map_.write(task.writes[0], type);
  if (storage)
    for (const Run& run : padding_of(*storage))
      map_.erase({task.writes[0].buffer, task.writes[0].begin_bytes + 4 * run.begin, 4 * (run.end - run.begin)});
  return true;
}

void StageTypes::collective(const Task& task, Axis axis) {
  const Slice &from = task.reads.at(0), &to = task.writes.at(0);
  const Role role = job_.channels[task.channel].role;
  if (role == Role::align) return;
  if (role == Role::peer) return keep(task);
  const auto wire = wires_.find({from.buffer, from.begin_bytes});
  if (wire != wires_.end() && map_.read(from).empty()) {
    const int64_t part_bytes = task.op == Op::all_to_all ? from.size_bytes / size_of_axis(axis) : from.size_bytes;
    if (task.op == Op::all_reduce) {
      wires_[{to.buffer, to.begin_bytes}] = summed(wire->second, axis);
    } else if (task.op == Op::all_to_all) {
      Parts sent;
      for (int rank = 0; rank < size_of_axis(axis); ++rank)
        sent.push_back(wires_[{from.buffer, from.begin_bytes + rank * part_bytes}]);
      for (int rank = 0; rank < size_of_axis(axis); ++rank) {
        Runs& part = wires_[{to.buffer, to.begin_bytes + rank * part_bytes}] =
            sent[static_cast<size_t>(index_on(axis))];
        for (Run& run : part) {
          run.type.sender_axis = axis;
          run.type.sender = static_cast<int16_t>(rank - index_on(axis));
        }
      }
      parts_[{to.buffer, to.begin_bytes}] = std::move(sent);
    } else {
      // Weights have the same types on all ranks. Other ranks have other parts of sums.
      const auto n = static_cast<size_t>(size_of_axis(axis));
      Parts sums = std::exchange(parts_[{from.buffer, from.begin_bytes}], {});
      const auto bucket = static_cast<size_t>(task.bucket);
      const bool of_shards = axis == job_.placement_of(bucket).copied_over;
      if (sums.size() != n) sums = Parts(n, wire->second);
      for (size_t rank = 0; rank < n; ++rank) {
        const int64_t further = static_cast<int64_t>(rank) - index_on(axis);
        Runs& part = wires_[{to.buffer, to.begin_bytes + static_cast<int64_t>(rank) * part_bytes}] = sums[rank];
        for (Run& run : part) {
          run.type = gathered(run.type, axis, of_shards && run.type.kind == Kind::gradient);
          if (run.type.kind == Kind::weight) run.type.first += further * job_.storage[bucket].shard_elems;
        }
      }
    }
    return;
  }
  if (role == Role::scalars || role == Role::norm) {
    offered_ = summed(map_.read(from), axis);
    if (job_.mesh.joins_stages(axis))
      meeting_ = &task;
    else
      map_.write(to, offered_);
    return;
  }
  const Runs runs = flat_runs(from, task.bucket);
  if (runs.empty() && task.bucket >= 0) return map_.erase(to);  // a shard of padding
  if (has_place(runs)) {
    if (task.op == Op::all_reduce)
      map_.write(to, in_bytes(summed(runs, axis), runs[0].type.elem_bytes));
    else if (task.op == Op::reduce_scatter)
      map_.write(to, in_bytes(own_part(summed(runs, axis), axis, task.elems), runs[0].type.elem_bytes));
    else
      map_.write(to, in_bytes(all_parts(runs, axis, task.elems), runs[0].type.elem_bytes));
    return;
  }
  // Values inside layers have no place in the flat order.
  Type type = uniform(from);
  if (task.op == Op::all_reduce) {
    type = summed(type, axis);
  } else if (task.op == Op::reduce_scatter) {
    type = summed(type, axis);
    type.tensor = part(Axis::tensor, Dim::tokens);
  } else if (task.op == Op::exchange) {
    const int n = size_of_axis(axis);
    if (axis != Axis::context || type.context.dim != Dim::tokens)
      refuse(buffer_name(from), name_of(axis),
             fmt::format("is {}, which is not in parts over {}", words(type), name_of(axis)));
    type.context.shift = static_cast<int16_t>(((type.context.shift - task.peer) % n + n) % n);
    if (type.context.is_partial())
      type.context.first = static_cast<int16_t>(((type.context.first - task.peer) % n + n) % n);
  } else if (type.kind == Kind::gradient) {
    type = summed(type, axis);  // rows from all ranks, which one addition sums up
  } else if (type.kind != Kind::neutral) {
    if (axis != Axis::tensor || (type.tensor.dim == Dim::whole || type.tensor.is_partial()))
      refuse(buffer_name(from), name_of(axis),
             fmt::format("is {}, which is not in parts over {}", words(type), name_of(axis)));
    type.tensor = {};
  }
  map_.write(to, type);
}

void StageTypes::meet(const Runs& sum) {
  map_.write(meeting_->writes[0], sum);
  meeting_ = nullptr;
  ++at_;
  ++tasks;
}

void StageTypes::task(const Item& item, const Task* task) {
  switch (item.op) {
    case Op::all_reduce:
    case Op::reduce_scatter:
    case Op::all_gather:
    case Op::all_to_all:
    case Op::exchange:
      if (job_.channels[task->channel].role == Role::experts)
        return task->op == Op::reduce_scatter ? summed_tokens(*task, job_.channels[task->channel].axis)
                                              : gathered_tokens(*task, job_.channels[task->channel].axis);
      return collective(*task, job_.channels[task->channel].axis);
    case Op::all_to_all_v:
      return routed(*task, job_.channels[task->channel].axis);
    case Op::send:
      return send(*task);
    case Op::sum_squares:
      return sum_squares(item);
    case Op::clip:
      return clip(item);
    case Op::update:
      return update(item);
    case Op::add:
      return map_.write(
          item.writes[0],
          in_bytes(added({flat_runs(item.reads[0], item.bucket), flat_runs(item.writes[0], item.bucket)}), 4));
    case Op::add_rows: {
      const Type words = uniform(item.reads[0]), rows = uniform(item.reads[1]);
      if (words != rows)
        refuse(buffer_name(item.reads[0]), name_of(kTokenRanks), "has the words of other ranks than the rows");

      Runs table = map_.read(item.writes[0]);
      for (Run& run : table) run.type = sum(run.type, rows);
      return map_.write(item.writes[0], table);
    }
    case Op::encode:
      return encode(*task);
    case Op::decode:
      return decode(*task);
    case Op::sum_parts:
      return sum_parts(*task);
    case Op::copy:
      if (!item.reads.empty()) map_.write(item.writes[0], map_.read(item.reads[0]));
      return;
    case Op::report:
      return require_losses(item.reads[0]);
    case Op::snapshot:
      return snapshot(item);
    case Op::seal:
      return seal(item);
    default:
      return;  // loads of the next batch
  }
}

}  // namespace slipstream::comm
