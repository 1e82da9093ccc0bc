// SPDX-License-Identifier: Apache-2.0
// The rules of rows that the ranks which divide experts exchange. Either rows travel by counts to the owners of experts
// and back, or every rank gathers all tokens, takes the rows of its experts, and returns their sums. The rules of
// counts.

#include <bit>

#include "comm/rehearse/stage_types.h"
#include "engine/base/check.h"
#include "engine/base/format.h"

namespace slipstream::comm {

/// The tokens of all ranks, or the counts of their rows.
void StageTypes::gathered_tokens(const Task& task, Axis axis) {
  const Slice &from = task.reads.at(0), &to = task.writes.at(0);
  Type type = uniform(from);
  if ((type.kind != Kind::activation && type.kind != Kind::derivative) || type.rows != Rows::own ||
      task.op != Op::all_gather)
    refuse(buffer_name(from), name_of(axis), fmt::format("is {}, and no value of this rank's tokens", words(type)));
  type.routed = axis;
  type.rows = Rows::of_tokens;
  map_.write(to, type);
}

/// Is the operand the part of gathered tokens that this rank has contributed?
bool StageTypes::is_own_part_of_tokens(const Slice& named, Axis axis) const {
  return job_.buffers[named.buffer].size_bytes == size_of_axis(axis) * named.size_bytes &&
         named.begin_bytes == index_on(axis) * named.size_bytes;
}

/// Every rank has the terms of its experts. A rank gets the sums of its tokens.
void StageTypes::summed_tokens(const Task& task, Axis axis) {
  const Slice &from = task.reads.at(0), &to = task.writes.at(0);
  Type type = uniform(from);
  if (type.rows != Rows::partial || type.routed != axis)
    refuse(buffer_name(from), name_of(axis),
           fmt::format("is {}, which has no terms on the ranks of {}", words(type), name_of(axis)));
  terms_.erase(place_of(from));
  map_.erase(from);
  type.routed = Axis::self;
  type.rows = Rows::own;
  map_.write(to, type);
}

/// Rows that travel by counts stay whole, but the tokens of all ranks of the axis are mixed. They return by the counts
/// that brought them, because other counts would take them to other tokens.
void StageTypes::routed(const Task& task, Axis axis) {
  const Slice &from = task.reads.at(0), &counts = task.reads.at(1), &to = task.writes.at(0);
  Type type = uniform(from);
  if (type.kind != Kind::activation && type.kind != Kind::derivative)
    refuse(buffer_name(from), name_of(axis), fmt::format("is {}, which has no rows of tokens", words(type)));
  const int64_t place = place_of(counts);
  if (type.rows != (task.route.reverse ? Rows::of_experts : Rows::own))
    refuse(buffer_name(from), name_of(axis),
           fmt::format("is {}, which is not where {} begins", words(type),
                       task.route.reverse ? "the way back" : "the way to experts"));
  if (task.route.reverse && type.routed_by != place)
    refuse(buffer_name(from), name_of(axis), "returns by other counts than those that brought it");
  const Type gathered = uniform(counts);
  if (gathered.routed != axis || gathered.rows != Rows::of_tokens)
    refuse(buffer_name(counts), name_of(axis),
           fmt::format("is {}, and not the counts of all ranks of {}", words(gathered), name_of(axis)));
  if (gathered.micro_batch != type.micro_batch)
    refuse(buffer_name(from), kMicroBatches,
           fmt::format("is of micro-batch {}, but its counts are of micro-batch {}", type.micro_batch,
                       gathered.micro_batch));
  type.routed = task.route.reverse ? Axis::self : axis;
  type.rows = task.route.reverse ? Rows::own : Rows::of_experts;
  type.routed_by = task.route.reverse ? -1 : place;
  if (task.route.reverse)
    returned(task, type);
  else
    type.round = static_cast<int16_t>(task.route.round), type.rounds = static_cast<int16_t>(task.route.rounds);
  map_.write(to, type);
}

/// The rows of each round return to places of their own, and are complete after the last one.
void StageTypes::returned(const Task& task, Type& type) {
  const Slice &from = task.reads.at(0), &to = task.writes.at(0);
  const Route& route = task.route;
  SLIP_ASSERT(route.rounds <= 32);
  if (type.round != route.round || type.rounds != route.rounds)
    refuse(buffer_name(from), name_of(Axis::expert),
           fmt::format("is {}, but returns in round {} of {}", words(type), route.round + 1, route.rounds));
  type.round = 0, type.rounds = 1;
  if (const Type* before = map_.only(to); before != nullptr && before->returned != 0) {
    type.returned = before->returned;
    if (type != *before || (type.returned >> route.round & 1) != 0)
      refuse(buffer_name(to), name_of(Axis::expert),
             fmt::format("is {} when round {} returns", words(*before), route.round + 1));
  }
  type.returned |= uint32_t{1} << route.round;
  if (std::popcount(type.returned) == route.rounds) type.returned = 0;
}

/// A number of this rank's rows, from the counts of all ranks.
void StageTypes::late_rows(const SpineItem& item, const Work& work) {
  Type type = operand(item, work, 0);
  if (type.kind != Kind::activation || type.rows != Rows::of_tokens)
    refuse(buffer_name(work.reads[0]), name_of(Axis::expert),
           fmt::format("is {}, and not the counts of all ranks", words(type)));
  type.routed = Axis::self;
  type.rows = Rows::own;
  results(item, work, type);
}

/// The order of the rows of this rank's experts, from the choices or counts of the tokens of all ranks. A rank with all
/// experts orders the rows of its own tokens.
void StageTypes::order(const SpineItem& item, const Work& work) {
  Type type = joined(item, work, 0);
  if (type.rows == Rows::of_tokens) {
    type.rows = Rows::of_experts;
    type.routed_by = place_of(at(item, work.reads[0]));
    type.round = work.meaning.step;
  } else if (type.rows != Rows::own) {
    refuse(buffer_name(work.reads[0]), name_of(type.routed),
           fmt::format("is {}, and no choice of tokens", words(type)));
  }
  results(item, work, type);
}

/// The operands are rows of tokens with the order of the rows of this rank's experts, or rows of its experts alone.
/// Tokens of all ranks become rows of experts. Rows of experts become terms of the sums of all tokens.
void StageTypes::reorder(const SpineItem& item, const Work& work) {
  Type tokens, experts;
  for (size_t i = 0; i < work.reads.size(); ++i) {
    const Type next = operand(item, work, i);
    take(next.rows == Rows::of_experts ? experts : tokens, next, buffer_name(work.reads[i]));
  }
  if (experts.kind == Kind::none && tokens.rows == Rows::own) return results(item, work, tokens);
  if (tokens.kind == Kind::none) {
    experts.rows = Rows::partial;
    experts.routed_by = -1;
    results(item, work, experts);
    return leave_terms(item, work);
  }
  const std::string& name = buffer_name(work.reads[0]);
  if (experts.kind == Kind::none || tokens.rows != Rows::of_tokens)
    refuse(name, name_of(Axis::expert), fmt::format("is {}, but its order is {}", words(tokens), words(experts)));
  Type order = experts;
  order.rows = tokens.rows;
  order.routed_by = tokens.routed_by;
  take(tokens, order, name);
  for (const Slice& read : work.reads)
    if (const Slice where = at(item, read); uniform(where).rows == Rows::of_tokens) map_.erase(where);
  tokens.rows = Rows::of_experts;
  tokens.routed_by = experts.routed_by;
  results(item, work, tokens);
}

void StageTypes::leave_terms(const SpineItem& item, const Work& work) {
  for (size_t i = 0; i < work.meaning.results; ++i) {
    const Slice where = at(item, work.writes[i]);
    if (!terms_.emplace(place_of(where), where).second)
      refuse(buffer_name(where), name_of(Axis::expert), "has terms of earlier sums, which no task has summed");
  }
}

void StageTypes::require_no_terms() const {
  for (const auto& [place, slice] : terms_)
    refuse(buffer_name(slice), name_of(Axis::expert), "has terms of sums, which no task has summed");
}

/// Experts multiply the rows that all ranks of their axis have sent, and other weights multiply the rank's own rows.
void StageTypes::require_routed(const Type& rows, const Type& weight, const std::string& name) {
  if (rows.rows != weight.rows || rows.routed != weight.routed)
    refuse(name, name_of(Axis::expert), fmt::format("is {}, but the weight is {}", words(rows), words(weight)));
}

/// Every rank of a sequence counts its own tokens.
void StageTypes::tally(const SpineItem& item, const Work& work) {
  Type type = joined(item, work, 0);
  type.kind = Kind::tally;
  type.context = partial(Axis::context);
  results(item, work, type);
}

/// Counts must have all tokens of the sequences of these rows.
void StageTypes::take_tally(const Type& all, const Type& counts, const std::string& name) {
  if (!counts.context.is_complete())
    refuse(name, name_of(Axis::context), fmt::format("is {}: its sum over context is missing", words(counts)));
  if (all.micro_batch != counts.micro_batch)
    refuse(
        name, kMicroBatches,
        fmt::format("is of micro-batch {}, but the rows are of micro-batch {}", counts.micro_batch, all.micro_batch));
}

}  // namespace slipstream::comm
