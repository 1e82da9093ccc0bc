// SPDX-License-Identifier: Apache-2.0
// The rules of rows that travel to the owners of experts and back.

#include "comm/rehearse/stage_types.h"
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
  map_.write(to, type);
}

/// Experts multiply the rows that all ranks of their axis have sent, and other weights multiply the rank's own rows.
void StageTypes::require_routed(const Type& rows, const Type& weight, const std::string& name) {
  if (rows.routed != weight.routed)
    refuse(name, name_of(Axis::expert), fmt::format("is {}, but the weight is {}", words(rows), words(weight)));
}

}  // namespace slipstream::comm
