// SPDX-License-Identifier: Apache-2.0
// The types with which a plan begins and which it must leave, and the walk between them.

#include "comm/rehearse/stage_types.h"

#include <algorithm>
#include <bit>

namespace slipstream::comm {
namespace {

/// Does the plan name each of two copies of the weights where others name the other?
bool exchanges_weights(const Job& job, const Plan& plan) {
  if (!job.options.double_buffer) return false;
  for (ItemId id = 0; id < plan.size(); ++id)
    for (const Rebind& rebind : plan[id].rebinds)
      if (rebind.to.buffer == job.ids.values_next) return true;
  return false;
}

}  // namespace

StageTypes::StageTypes(const Job& job, const PlanRow& row, Shared& shared)
    : job_(job),
      plan_(row.plan),
      kind_(row.kind),
      is_swapped_(exchanges_weights(job, row.plan)),
      shared_(shared),
      value_of_(job.buffers.size(), -1),
      gradient_of_(job.buffers.size(), -1),
      is_neutral_(job.buffers.size(), 0) {
  for (size_t p = 0; p < job.model.parameters.size(); ++p) {
    value_of_[job.model.parameters[p].value] = static_cast<int64_t>(p);
    gradient_of_[job.model.parameters[p].gradient] = static_cast<int64_t>(p);
  }
  for (BufferId b = 0; b < job.buffers.size(); ++b)
    is_neutral_[b] = job.buffers[b].owner == Owner::batch && b != job.ids.scalars_next;
  for (const Constant& constant : job.model.constants) is_neutral_[constant.buffer] = 1;
}

void StageTypes::refuse(const std::string& tensor, const std::string& axis, const std::string& fault) const {
  std::string item = at_ < plan_.order.size() ? plan_[plan_.order[at_]].name : "the end of the plan";
  for (size_t i = plan_.order.size(); i-- > 0 && is_done();) {
    const Item& last = plan_[plan_.order[i]];
    if (std::any_of(last.writes.begin(), last.writes.end(), [&](const Slice& w) { return w.overlaps(left_); })) {
      item += " after " + last.name;
      break;
    }
  }
  if (work_) item += ":" + work_->name;
  throw Refused{{plan_.kind, item, job_.stage(), tensor, axis, fault}};
}

void StageTypes::refuse_meeting() const {
  refuse(buffer_name(meeting_->reads[0]), name_of(meeting_axis()), "is summed over other ranks on another stage");
}

std::string StageTypes::tensor_at(int64_t flat_elem) const {
  const auto& parts = job_.layout.parts;
  auto part = std::upper_bound(parts.begin(), parts.end(), flat_elem,
                               [](int64_t elem, const PlacedPart& p) { return elem < p.offset_elems; });
  if (part != parts.begin()) --part;
  return part == parts.end() ? "nothing" : job_.model.parameters[part->part.parameter].name();
}

/// Have groups of both axes more than one rank in common?
bool StageTypes::meet_twice(Axis a, Axis b) {
  const auto [found, is_new] = meet_twice_.try_emplace(std::minmax(a, b), false);
  if (!is_new) return found->second;
  const std::vector<int> one = job_.mesh.group(a, job_.options.rank), other = job_.mesh.group(b, job_.options.rank);
  const auto common = std::count_if(
      one.begin(), one.end(), [&](int rank) { return std::find(other.begin(), other.end(), rank) != other.end(); });
  return found->second = common > 1;
}

/// The axes over which a sum was formed have no two ranks in common, so the number of its terms is the product of their
/// sizes.
bool StageTypes::is_complete(const Type& type, Axis over) const {
  int64_t terms = 1;
  for (size_t a = 0; a < kAxes; ++a)
    if ((type.summed >> a & 1) != 0) terms *= size_of_axis(static_cast<Axis>(a));
  return terms == size_of_axis(over);
}

/// "summed over data_inner but not over data_outer".
std::string StageTypes::sum_text(const Type& type) {
  std::string over, missing = name_of(kTokenRanks);
  for (size_t a = 0; a < kAxes; ++a)
    if ((type.summed >> a & 1) != 0)
      over += fmt::format("{}{}", over.empty() ? "" : " and ", name_of(static_cast<Axis>(a)));
  if (is_complete(type, kTokenRanks)) return over.empty() ? "on one rank" : "summed over " + over;
  if (over.empty()) return "not summed over " + missing;
  int most = 1;
  for (size_t a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    bool is_rest = size_of_axis(axis) > most && Mesh::contains(kTokenRanks, axis);
    for (size_t b = 0; b < kAxes; ++b)
      if ((type.summed >> b & 1) != 0) is_rest = is_rest && !meet_twice(axis, static_cast<Axis>(b));
    if (is_rest) missing = name_of(axis), most = size_of_axis(axis);
  }
  return fmt::format("summed over {} but not over {}", over, missing);
}

std::string StageTypes::words(const Type& type) {
  static constexpr const char* kKinds[] = {
      "nothing",         "the batch",  "zeros",       "any value",     "weights",
      "optimizer state", "a gradient", "activations", "derivatives",   "statistics of losses",
      "losses",          "squares",    "scalars",     "a clip factor", "what rounding removed",
      "a header",        "counts"};
  static constexpr const char* kDims[] = {"whole", "tokens", "columns of rows", "output rows", "input columns"};
  std::string text = kKinds[static_cast<size_t>(type.kind)];
  if (type.state >= 0) text += fmt::format(" {}", type.state);
  const auto share = [&](const Share& s, const char* axis) {
    if (s.is_partial())
      text += fmt::format(", {} of {} terms over {}", s.terms,
                          size_of_axis(axis == std::string("tensor") ? Axis::tensor : Axis::context), axis);
    if (s.dim != Dim::whole) text += fmt::format(", in parts of {} over {}", kDims[static_cast<size_t>(s.dim)], axis);
  };
  share(type.tensor, "tensor");
  share(type.context, "context");
  static constexpr const char* kRows[] = {"", "of the tokens of all ranks", "of the rank's experts",
                                          "of the tokens of all ranks with the terms of the rank's experts"};
  if (type.routed != Axis::self)
    text += fmt::format(", {} of {}", kRows[static_cast<size_t>(type.rows)], name_of(type.routed));
  if (type.rows == Rows::of_experts && type.rounds > 1)
    text += fmt::format(", of round {} of {}", type.round + 1, type.rounds);
  if (type.returned != 0) text += fmt::format(", of {} rounds of rows", std::popcount(type.returned));
  if (type.micro_batch >= 0) text += fmt::format(", of micro-batch {}", type.micro_batch);
  if (type.kind == Kind::gradient || type.kind == Kind::losses) text += ", " + sum_text(type);
  if (type.shard != Axis::self) text += fmt::format(", one part over {}", name_of(type.shard));
  if (type.version != 0) text += ", of the next step";
  return text;
}

Slice StageTypes::swapped(Slice slice) const {
  if (is_swapped_ && slice.buffer == job_.ids.values)
    slice.buffer = job_.ids.values_next;
  else if (is_swapped_ && slice.buffer == job_.ids.values_next)
    slice.buffer = job_.ids.values;
  return slice;
}

/// The slice in which the update writes what it reads at `slice`.
Slice StageTypes::next(const Slice& slice) const {
  if (!job_.options.double_buffer || slice.buffer != job_.ids.values) return swapped(slice);
  return swapped({job_.ids.values_next, slice.begin_bytes, slice.size_bytes});
}

void StageTypes::begin() {
  const bool primes = kind_ == PlanKind::prime;
  for (size_t b = 0; b < job_.storage.size(); ++b) {
    const BucketStorage& storage = job_.storage[b];
    const Placement& placement = job_.placement_of(b);
    map_.write(swapped(storage.master), held_type(b, -1, DType::f32));
    const std::vector<OptimizerState>& kinds = job_.group_of(b).optimizer->states;
    for (size_t s = 0; s < storage.states.size(); ++s)
      map_.write(storage.states[s], held_type(b, static_cast<int>(s), kinds[s].dtype));
    if (placement.gathers_encoded())
      wires_[{storage.working.buffer, storage.working.begin_bytes}] = {
          {0, storage.shard_elems, held_type(b, -1, DType::f32)}};
    else
      map_.write(swapped(storage.working), held_type(b, -1, job_.model.dtype));
    if (storage.values.size_bytes > 0 && !(primes && placement.gathers_encoded()))
      map_.write(swapped(storage.values), Type{.kind = Kind::weight,
                                               .first = job_.layout.buckets[b].offset_elems,
                                               .elem_bytes = static_cast<int8_t>(size_of(job_.model.dtype))});
    map_.write(storage.residual, residual_type(b, false));
    map_.write(storage.sum_residual, residual_type(b, true));
    for (const Slice& residual : {storage.residual, storage.sum_residual})
      if (residual.size_bytes > 0 &&
          std::none_of(saved().begin(), saved().end(), [&](const Saved& each) { return each.array.from == residual; }))
        refuse(buffer_name(residual), name_of(placement.sums_over),
               "is owed to later gradients, but no checkpoint has it");
  }
  if (kind_ == PlanKind::train) require_saved_once();
  map_.write(job_.buffers.whole(job_.ids.scalars_next), Type{.kind = Kind::scalar});
  // The squares that other stages add, and the losses of a stage without the head, are always zero.
  const Type zero{.kind = Kind::zero};
  map_.write(job_.buffers.whole(job_.ids.norm_parts), zero);
  for (const PlacedPart& placed : job_.layout.parts)
    if (placed.norm_index >= 0) map_.erase({job_.ids.norm_parts, int64_t{placed.norm_index} * 8, 8});
  bool has_losses = false;
  for (const std::vector<uint32_t>* list : {&job_.model.forward, &job_.model.backward})
    for (uint32_t piece : *list)
      for (const Work& work : job_.model.pieces[piece].works) has_losses |= work.meaning.rule == Rule::count;
  if (!has_losses) map_.write(job_.buffers.whole(job_.model.loss), zero);
}

bool StageTypes::advance() {
  bool any = false;
  for (; at_ < plan_.order.size() && !meeting_; ++at_, any = true) {
    const ItemId id = plan_.order[at_];
    if (plan_.is_spine(id) && plan_.spine[id].piece < job_.model.pieces.size()) {
      spine_item(plan_.spine[id]);
      continue;
    }
    const Task* as_task = plan_.is_spine(id) ? nullptr : &plan_.task(id);
    if (as_task && as_task->op == Op::recv) {
      if (!recv(*as_task)) return any;
    } else {
      task(plan_[id], as_task);
      if (meeting_) return true;
    }
    ++tasks;
  }
  return any;
}

/// `first`: the place at which they begin in the flat order.
void StageTypes::require_values(const Runs& runs, const Slice& slice, int64_t first, int32_t version,
                                const char* name) {
  int64_t end = 0;
  for (const Run& run : runs) {
    const Type& type = run.type;
    if (run.begin > end) break;
    end = run.end;
    if ((type.kind != Kind::weight && type.kind != Kind::state) || type.version != version)
      refuse(tensor_at(type.first), name_of(kTokenRanks),
             fmt::format("of {} is not that of {} step: {}", name, version > 0 ? "the next" : "this", words(type)));
    if (const int64_t at = first + run.begin / type.elem_bytes; type.first != at)
      refuse(tensor_at(at), name_of(kTokenRanks),
             fmt::format("of {} has the elements of {}", name, tensor_at(type.first)));
  }
  if (end < slice.size_bytes)
    refuse(buffer_name(slice), kElements, fmt::format("is not written, although it holds {}", name));
}

void StageTypes::end() {
  if (!is_done()) {
    const Item& waiting = plan_[plan_.order[at_]];
    refuse(buffer_name(waiting.writes.empty() ? waiting.reads.at(0) : waiting.writes[0]), name_of(Axis::pipeline),
           "never arrives from another stage");
  }
  require_no_terms();
  const bool trains = kind_ == PlanKind::train;
  const int32_t version = trains ? 1 : 0;
  for (size_t b = 0; b < job_.storage.size(); ++b) {
    const BucketStorage& storage = job_.storage[b];
    const auto left = [&](const Slice& slice) { return trains ? next(slice) : swapped(slice); };
    const int64_t first = storage.shard_offset_elems;
    const auto require = [&](const Slice& slice, int64_t begin, const char* name) {
      left_ = slice;
      require_values(map_.read(slice), slice, begin, version, name);
    };
    require(left(storage.master), first, "the master weights");
    for (const Slice& state : storage.states) require(state, first, "the optimizer's states");
    if (!job_.placement_of(b).gathers_encoded())
      require(left(storage.working), first, "the rounded weights");
    else if (const Runs& sent = wires_[{storage.working.buffer, storage.working.begin_bytes}];
             sent.empty() || sent[0].type.version != version || sent[0].type.first != first)
      refuse(tensor_at(first), name_of(kTokenRanks), "is not encoded for the next step");
    if (storage.values.size_bytes == 0) continue;
    const Slice values = left(storage.values);
    require(values, job_.layout.buckets[b].offset_elems, "the weights");

    for (const Run& run : map_.read(values))
      if (run.type.shard != Axis::self)
        refuse(tensor_at(run.type.first), name_of(run.type.shard),
               "of the weights is a part that no gather has joined with the others");
  }
  // At rest, a checkpoint reads the arrays themselves.
  const auto require = [&](const Saved& each, const Slice& slice) {
    left_ = slice;
    require_saved(each, map_.read(slice));
  };
  for (const Saved& each : saved()) require(each, trains ? next(each.array.from) : swapped(each.array.from));
  if (kind_ == PlanKind::save)
    for (const Saved& each : saved()) require(each, each.snapshot);
  if (kind_ == PlanKind::keep) require_both_kept();
  if (kind_ != PlanKind::evaluate) return;
  for (const Chunk& chunk : job_.chunks)
    for (uint32_t piece : chunk.evaluate)
      for (const Work& work : job_.model.pieces[piece].works)
        if (const Rule rule = work.meaning.rule; rule == Rule::losses || rule == Rule::merged_losses)
          if (const Type type = uniform(work.writes[0]); type.tensor != Share{})
            refuse(buffer_name(work.writes[0]), name_of(Axis::tensor), "of an evaluation is not complete");
}

std::string Incomplete::sentence() const {
  return fmt::format("{} ({} plan, stage {}, over {}): {} {}", item, plan, stage, axis, tensor, fault);
}

namespace {

/// Collects which uses of each parameter have a gradient, because an update must have all of them.
void collect_uses(const Job& job, Shared& shared) {
  for (uint32_t piece : job.model.backward)
    for (const Work& work : job.model.pieces[piece].works)
      for (size_t i = work.meaning.results; i < size_t{work.meaning.results} + work.meaning.sums; ++i) {
        const BufferSpec& spec = job.buffers[work.writes[i].buffer];
        for (const ParameterSpec& parameter : job.model.parameters)
          if (parameter.gradient == work.writes[i].buffer) shared.uses[parameter.name()].insert(work.meaning.use);
        if (const TiedEmbedding& tied = job.model.tied;
            tied.split && (work.writes[i].buffer == tied.dense || (spec.is_view && spec.view.buffer == tied.rows)))
          shared.uses[job.model.parameters[tied.parameter].name()].insert(work.meaning.use);
      }
}

/// Walks through one plan of all stages together. A value that one stage sends has the same type on the next stage.
void follow(std::span<const Job* const> stages, size_t row, Shared& shared, ReductionReport& report) {
  std::vector<StageTypes> walks;
  for (const Job* job : stages) walks.emplace_back(*job, job->plans[row], shared);
  shared.sent.clear();
  try {
    for (StageTypes& walk : walks) walk.begin();
    for (bool any = true; any;) {
      any = false;
      for (StageTypes& walk : walks) any |= walk.advance();
      if (!std::all_of(walks.begin(), walks.end(), [](const StageTypes& walk) { return walk.meeting() != nullptr; }))
        continue;
      for (const StageTypes& walk : walks)
        if (walk.meeting_axis() != walks[0].meeting_axis()) walk.refuse_meeting();
      std::vector<Runs> offered;

      for (const StageTypes& walk : walks) offered.push_back(walk.offered());
      const Runs sum = walks[0].added(offered);
      for (StageTypes& walk : walks) walk.meet(sum);
      any = true;
    }
    for (StageTypes& walk : walks) walk.end();
  } catch (const Refused& refused) {
    report.found.push_back(refused.what);
  }
  for (const StageTypes& walk : walks) report.works += walk.works, report.tasks += walk.tasks;
  if (row == 0)
    for (StageTypes& walk : walks) report.saved_arrays += walk.arrays_of_a_checkpoint();
}

}  // namespace

ReductionReport find_incomplete(std::span<const Job* const> stages) {
  Shared shared;
  ReductionReport report;
  const Job& first = *stages[0];
  shared.tokens =
      first.model.batch * first.model.tokens * first.mesh.group_size(kTokenRanks) * first.buffers.micro_batches;
  for (const Job* job : stages) {
    collect_uses(*job, shared);
    report.parameters += std::ssize(job->model.parameters);
  }
  for (size_t row = 0; row < first.plans.size(); ++row) follow(stages, row, shared, report);
  return report;
}

}  // namespace slipstream::comm
