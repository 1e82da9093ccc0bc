// SPDX-License-Identifier: Apache-2.0
// The rules of rows that travel to the owners of experts and back.

#include <bit>

#include "comm/rehearse/stage_types.h"
#include "engine/base/check.h"
#include "engine/base/format.h"

namespace slipstream::comm {

/// The counts of rows, by which these will travel.
void StageTypes::gathered_counts(const Task& task, Axis axis) {
  const Slice &from = task.reads.at(0), &to = task.writes.at(0);
  Type type = uniform(from);
  if (type.kind != Kind::activation || type.routed != Axis::self || task.op != Op::all_gather)
    refuse(buffer_name(from), name_of(axis), fmt::format("is {}, and no count of this rank's rows", words(type)));
  type.routed = axis;
  type.routed_by = place_of(to);
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
  if (type.routed != (task.route.reverse ? axis : Axis::self))
    refuse(buffer_name(from), name_of(axis),
           fmt::format("is {}, which is not where {} begins", words(type),
                       task.route.reverse ? "the way back" : "the way to experts"));
  if (task.route.reverse && type.routed_by != place)
    refuse(buffer_name(from), name_of(axis), "returns by other counts than those that brought it");
  const Type gathered = uniform(counts);
  if (gathered.routed != axis || gathered.routed_by != place)
    refuse(buffer_name(counts), name_of(axis),
           fmt::format("is {}, and not the counts of all ranks of {}", words(gathered), name_of(axis)));
  if (gathered.micro_batch != type.micro_batch)
    refuse(buffer_name(from), kMicroBatches,
           fmt::format("is of micro-batch {}, but its counts are of micro-batch {}", type.micro_batch,
                       gathered.micro_batch));
  type.routed = task.route.reverse ? Axis::self : axis;
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

/// Numbers that follow from the counts of all ranks.
void StageTypes::counted(const SpineItem& item, const Work& work) {
  Type type = operand(item, work, 0);
  if (type.kind != Kind::activation || type.routed == Axis::self)
    refuse(buffer_name(work.reads[0]), name_of(Axis::expert),
           fmt::format("is {}, and not the counts of all ranks", words(type)));
  if (work.meaning.rule == Rule::late_rows) type.routed = Axis::self, type.routed_by = -1;
  type.round = work.meaning.rule == Rule::own_rows ? work.meaning.step : int16_t{0};
  results(item, work, type);
}

/// Experts multiply the rows that all ranks of their axis have sent, and other weights multiply the rank's own rows.
void StageTypes::require_routed(const Type& rows, const Type& weight, const std::string& name) {
  if (rows.routed != weight.routed)
    refuse(name, name_of(Axis::expert), fmt::format("is {}, but the weight is {}", words(rows), words(weight)));
}

}  // namespace slipstream::comm
