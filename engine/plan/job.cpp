// SPDX-License-Identifier: Apache-2.0
// Questions that a job answers from its data.

#include "engine/plan/job.h"

#include <algorithm>
#include <limits>

#include "engine/base/check.h"

namespace slipstream {

Slice flat_slice(BufferId buffer, int64_t offset_elems, int64_t elems, DType dtype) {
  return {buffer, bytes_of(offset_elems, dtype), bytes_of(elems, dtype)};
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
  const bool piped = mesh.group_size(Axis::pipeline) > 1, split = mesh.group_size(Axis::tensor) > 1;
  if (split) return piped || zero_stage > 0 ? Axis::world : Axis::tensor;
  if (zero_stage == 0) return piped ? Axis::pipeline : Axis::self;
  return is_hybrid() && !piped ? Axis::data_inner : scalars_axis();
}

bool Job::counts_squares_of(const ParameterSpec& parameter, int rank) const {
  const Coordinates at = mesh.coordinates(rank);
  if (at.tensor > 0 && !parameter.is_split()) return false;
  if (norm_axis() != Axis::world) return true;
  // Other ranks with the same gradient add zeros.
  return mesh.index_in_group(zero_stage == 0 ? Axis::replica : Axis::data_outer, rank) == 0;
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
