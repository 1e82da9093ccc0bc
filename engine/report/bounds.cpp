// SPDX-License-Identifier: Apache-2.0
// Walks the gradient parts in completion order: a part is sent after it is ready, and no faster than the port.

#include "engine/report/bounds.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/check.h"
#include "engine/base/format.h"

namespace slipstream {

namespace {

bool reads_parameters(const Job& job, const SpineItem& item) {
  return std::any_of(item.reads.begin(), item.reads.end(), [&](const Slice& slice) {
    return job.buffers[slice.buffer].owner == Owner::parameters ||
           (job.sharding().parameters && slice.buffer == job.ids.value_slots);
  });
}

/// Returns the bytes that a rank sends for an element of a group that is reduced into shards or gathered from them.
double sent_bytes(const Job& job, const Placement& placement, const Format& wire) {
  constexpr int64_t kMany = 1 << 10;
  const double ranks = job.mesh.group_size(placement.sums_over);
  return (ranks - 1) / ranks * static_cast<double>(encoded_bytes(kMany, wire)) / kMany;
}

/// A part of the gradients on its way.
struct Part {
  int64_t ready_ns;
  double bytes;
  bool in_slot;  // it is reduced in every micro-batch
};

/// Returns the parts in completion order. `ready`: by index into ModelSpec::backward.
std::vector<Part> parts_of(const Job& job, const BoundInput& input, const std::vector<int64_t>& ready) {
  std::vector<Part> parts;
  for (const Bucket& bucket : job.layout.buckets) {
    const Placement& placement = job.groups[bucket.group].placement;
    const double factor = (placement.is_sharded() ? 1.0 : 2.0) * sent_bytes(job, placement, placement.reduce_wire);
    for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p) {
      const PlacedPart& placed = job.layout.parts[p];
      parts.push_back({ready[placed.ready_position], factor * static_cast<double>(placed.part.elems),
                       bucket.unit || bucket.persistent});
    }
  }
  if (const TiedEmbedding& tied = job.model.tied; tied.split)
    parts.push_back({ready.back(),
                     tied.as_rows
                         ? (input.ranks - 1.0) * static_cast<double>(tied.capacity * (4 * tied.width + 4))
                         : 2.0 * (input.ranks - 1) / input.ranks * 4.0 * static_cast<double>(tied.vocab * tied.width),
                     false});
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.ready_ns < b.ready_ns; });
  return parts;
}

}  // namespace

IdealBound ideal_bound(const Job& job, const BoundInput& input) {
  const Plan& plan = job.train();
  SLIP_ASSERT(input.spine_ns.size() == plan.spine.size());
  IdealBound bound;
  bound.compute_ns = std::accumulate(input.spine_ns.begin(), input.spine_ns.end(), int64_t{0});
  if (input.ranks < 2) {
    bound.bound_ns = bound.compute_ns;
    return bound;
  }
  // The ends of the backward pieces of the last micro-batch.
  std::vector<int64_t> ends(plan.spine.size());
  std::partial_sum(input.spine_ns.begin(), input.spine_ns.end(), ends.begin());
  std::vector<int64_t> ready(job.model.backward.size(), 0);
  const int32_t last_micro_batch = job.buffers.micro_batches - 1;
  for (size_t i = 0; i < plan.spine.size(); ++i)
    if (plan.spine[i].op == Op::compute && plan.spine[i].micro_batch == last_micro_batch)
      for (size_t p = 0; p < job.model.backward.size(); ++p)
        if (job.model.backward[p] == plan.spine[i].piece) ready[p] = ends[i];

  const std::vector<Part> parts = parts_of(job, input, ready);
  double left = 0;
  for (const Part& part : parts) left += part.bytes;
  const double ns_per_byte = 1e9 / input.bytes_per_second;
  // Parameters with sharded states are gathered once in a step. Sharded parameters of layers are gathered for every
  // pass that does not find them in a slot.
  double gathered = 0, before_layers = 0;
  const auto gather_bytes = [&](const Placement& placement, int64_t elems) {
    return placement.is_sharded() ? sent_bytes(job, placement, placement.gather_wire) * static_cast<double>(elems) : 0;
  };
  for (const Task& task : plan.tasks)
    if (const auto bucket = static_cast<size_t>(task.bucket); task.op == Op::all_gather && task.bucket >= 0)
      gathered += gather_bytes(job.placement_of(bucket), job.layout.buckets[bucket].elems);
  for (const ParameterGroup& group : job.groups)
    for (uint32_t p : group.parameters)
      if (const ParameterSpec& parameter = job.model.parameters[p]; parameter.layer < 0)
        before_layers += gather_bytes(group.placement, parameter.elems);
  double reductions = left;
  for (const Part& part : parts)
    if (part.in_slot) reductions += (job.buffers.micro_batches - 1) * part.bytes;
  bound.wire_ns = static_cast<int64_t>(std::ceil((reductions + gathered) * ns_per_byte));
  int64_t sums_done = 0;
  for (const Part& part : parts) {
    sums_done = std::max(sums_done, part.ready_ns + static_cast<int64_t>(left * ns_per_byte));
    left -= part.bytes;
  }
  // If the update is on the spine, it follows the backward pass.
  int64_t updates = 0, clip = 0, first_update = 0;
  for (size_t i = plan.spine.size(); i-- > 0;) {
    const Op op = plan.spine[i].op;
    if (op == Op::compute || op == Op::sum_squares) break;
    if (op == Op::clip) clip += input.spine_ns[i];
    if (op == Op::update) updates += first_update = input.spine_ns[i];
  }
  // The padding of buckets is updated too, although no plan needs it.
  const PlacedPart* last = nullptr;
  int64_t elems = 0;
  for (const PlacedPart& placed : job.layout.parts) {
    elems += placed.part.elems;
    if (!last || !job.model.tied.split || placed.part.parameter == job.model.tied.parameter) last = &placed;
  }
  const int64_t behind_last_sum = job.options.clip ? elems : last ? last->part.elems : 0;
  int64_t tail = job.options.clip ? clip : 0;
  if (updates > 0)
    tail += static_cast<int64_t>(static_cast<double>(updates) * static_cast<double>(behind_last_sum) /
                                 static_cast<double>(job.layout.flat_elems));
  // The next step begins with the parameters before the layers, once they have been updated and sent. The work that the
  // step can do before it needs them is subtracted.
  int64_t lead = 0;
  for (size_t i = 0; i < plan.spine.size() && !reads_parameters(job, plan.spine[i]); ++i) lead += input.spine_ns[i];
  if (job.sharding().states && job.options.clip)
    tail = std::max(tail, first_update + input.latency_ns + static_cast<int64_t>(before_layers * ns_per_byte) - lead);
  bound.bound_ns = std::max({sums_done + input.latency_ns + tail, bound.compute_ns, bound.wire_ns});
  return bound;
}

}  // namespace slipstream
