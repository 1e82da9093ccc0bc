// SPDX-License-Identifier: Apache-2.0
// The axes of a placement, and what travels in a step.

#include "engine/plan/placement.h"

namespace slipstream {

Placement place(Sharding sharding, const Mesh& mesh, bool experts, const Formats& formats) {
  const Axis all = experts ? Axis::expert_data : Axis::replica, inner = experts ? Axis::expert_inner : Axis::data_inner;
  Placement placement{.sums_over = all,
                      .copied_over = all,
                      .value = formats.value,
                      .reduce_wire = formats.reduce_wire,
                      .gather_wire = formats.value};
  if (!sharding.states || mesh.group_size(inner) == 1) return placement;
  placement.sharding = sharding;
  placement.sharded_over = mesh.group_size(Axis::data_outer) > 1 ? inner : all;
  placement.copied_over = Axis::data_outer;
  placement.gather_wire = formats.gather_wire.value_or(formats.value);
  return placement;
}

std::vector<Transfer> Placement::transfers(const Mesh& mesh, int64_t micro_batches) const {
  if (!reduces(mesh)) return {};
  if (!is_sharded()) return {{Op::all_reduce, sums_over, reduce_wire, 1}};
  std::vector<Transfer> all{{Op::reduce_scatter, sharded_over, reduce_wire, sharding.gradients ? micro_batches : 1},
                            {Op::all_gather, sharded_over, gather_wire, sharding.parameters ? 2 * micro_batches : 1}};
  if (reduces_across(mesh)) all.push_back({Op::all_reduce, copied_over, across_wire(), 1, true});
  return all;
}

}  // namespace slipstream
