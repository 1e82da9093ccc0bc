// SPDX-License-Identifier: Apache-2.0
// Answers questions about a job from its data.

#include "engine/plan/job.h"

#include <algorithm>
#include <limits>

#include "engine/base/check.h"

namespace slipstream {

Slice flat_slice(BufferId buffer, int64_t offset_elems, int64_t elems, DType dtype) {
  return {buffer, bytes_of(offset_elems, dtype), bytes_of(elems, dtype)};
}

bool Job::reduces() const {
  return std::any_of(groups.begin(), groups.end(),
                     [&](const ParameterGroup& group) { return group.placement.reduces(mesh); });
}

Axis Job::tied_axis() const {
  for (const ParameterGroup& group : groups)
    if (std::find(group.parameters.begin(), group.parameters.end(), model.tied.parameter) != group.parameters.end())
      return group.placement.sums_over;
  throw PlanError("[plan] no parameter group has the tied table.");
}

Job::Share Job::share() const {
  const auto index = [&](Axis axis) { return mesh.index_in_group(axis, options.rank); };
  return {.rank = index(Axis::data),
          .ranks = mesh.group_size(Axis::data),
          .context_rank = index(Axis::context),
          .context_ranks = mesh.group_size(Axis::context),
          .counts = index(Axis::tensor) == 0};
}

Sharding Job::sharding() const {
  Sharding any;
  for (const ParameterGroup& group : groups) {
    any.states |= group.placement.sharding.states;
    any.gradients |= group.placement.sharding.gradients;
    any.parameters |= group.placement.sharding.parameters;
  }
  return any;
}

ChannelId Job::channel(Role role, Axis axis) const {
  for (ChannelId c = 0; c < channels.size(); ++c)
    if (channels[c].role == role && channels[c].axis == axis) return c;
  throw PlanError("[plan] no channel is named {} over axis {}.", name_of(role), name_of(axis));
}

const Plan& Job::plan(PlanKind kind, int64_t steps) const {
  for (const PlanRow& row : plans)
    if (row.kind == kind && steps % row.cadence.every == row.cadence.at) return row.plan;
  throw InternalError("[plan] the job has no plan '{}' after {} steps.", name_of(kind), steps);
}

Plan& Job::plan(PlanKind kind, int64_t steps) { return const_cast<Plan&>(std::as_const(*this).plan(kind, steps)); }

bool Job::has(PlanKind kind) const {
  return std::any_of(plans.begin(), plans.end(), [&](const PlanRow& row) { return row.kind == kind; });
}

Plan& Job::add_plan(PlanKind kind, When when) {
  return plans.emplace_back(PlanRow{.kind = kind, .cadence = {.when = when}, .plan = {.kind = name_of(kind)}}).plan;
}

Calendar Job::calendar() const {
  std::vector<Cadence> rows;
  for (const PlanRow& row : plans) rows.push_back(row.cadence);
  return Calendar(std::move(rows));
}

uint32_t Job::first_item(PlanKind kind) const {
  uint32_t first = 0;
  for (const PlanRow& row : plans) {
    if (row.kind == kind) break;
    first += static_cast<uint32_t>(row.plan.size());
  }
  return first;
}

std::pair<const PlanRow*, ItemId> Job::of_timeline(uint32_t item) const {
  for (const PlanRow& row : plans) {
    if (item < row.plan.size()) return {&row, item};
    item -= static_cast<uint32_t>(row.plan.size());
  }
  throw InternalError("[plan] no plan of the job has item {} of a timeline.", item);
}

ChannelId Job::channel(Role role) const {
  for (ChannelId c = 0; c < channels.size(); ++c)
    if (channels[c].role == role) return c;
  throw PlanError("[plan] no channel is named {}.", name_of(role));
}

std::pair<uint32_t, uint32_t> Job::backward_positions(int chunk) const {
  uint32_t begin = 0;
  for (size_t c = chunks.size(); --c > static_cast<size_t>(chunk);)
    begin += static_cast<uint32_t>(chunks[c].backward.size() + chunks[c].weight.size());
  const Chunk& of = chunks[static_cast<size_t>(chunk)];
  return {begin, begin + static_cast<uint32_t>(of.backward.size() + of.weight.size())};
}

Axis Job::scalars_axis() const { return mesh.world() == mesh.group_size(Axis::replica) ? Axis::replica : Axis::world; }

Axis Job::norm_axis() const {
  std::vector<Axis> divided{Axis::pipeline, Axis::tensor};
  for (const ParameterGroup& group : groups) divided.push_back(group.placement.divided_over());
  return mesh.smallest_with(divided);
}

bool Job::counts_squares_of(const ParameterGroup& group, const ParameterSpec& parameter, int rank) const {
  const Axis summed = norm_axis();
  const auto is_first = [&](Axis copies) {  // the first of the ranks that have the same gradient and add to one sum
    return !Mesh::contains(summed, copies) || mesh.index_in_group(copies, rank) == 0;
  };
  return is_first(group.placement.copied_over) && (parameter.is_split() || is_first(Axis::tensor));
}

int Job::parts_of(const ParameterSpec& parameter) const {
  return (parameter.is_split() ? mesh.group_size(Axis::tensor) : 1) *
         (parameter.is_of_experts() ? mesh.group_size(Axis::expert) : 1);
}

int Job::part_of(const ParameterSpec& parameter, int rank) const {
  const int tensor = parameter.is_split() ? mesh.index_in_group(Axis::tensor, rank) : 0,
            expert = parameter.is_of_experts() ? mesh.index_in_group(Axis::expert, rank) : 0;
  return expert * (parameter.is_split() ? mesh.group_size(Axis::tensor) : 1) + tensor;
}

void write_scalars(const Job& job, const UpdateOptions& update, double learning_rate, int64_t step,
                   std::span<float> scalars) {
  for (const ParameterGroup& group : job.groups)
    group.optimizer->write_scalars(
        update, learning_rate * group.rate_factor, step,
        scalars.subspan(static_cast<size_t>(group.first_scalar), group.optimizer->scalars.size()));
  std::fill(scalars.begin() + job.scalars(), scalars.end(), std::numeric_limits<float>::infinity());
}

}  // namespace slipstream
