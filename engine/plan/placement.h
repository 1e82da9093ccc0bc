// SPDX-License-Identifier: Apache-2.0
#pragma once
// Placement: how the ranks with the same parameters share the values, gradients and states of a parameter group.
//
// Passes, memory, norm, checkpoints, the comparison of replicas, search bounds and reports ask a placement, and none of
// them reads ZeRO's stage. The sources are Rajbhandari et al. 2020 (ZeRO) and Zhang et al. 2022 (MiCS: copies of
// shards).

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/format.h"
#include "engine/base/sharding.h"
#include "engine/plan/mesh.h"
#include "engine/plan/plan.h"

namespace slipstream {

/// A collective that carries every element of a group in a step.
struct Transfer {
  Op op;
  Axis axis;
  Format wire;
  int64_t times;          // the number of times in a step
  bool of_shard = false;  // it carries only the elements of a shard
};

struct Placement {
  Axis sums_over = Axis::replica;    // gradients are summed along this axis
  Axis sharded_over = Axis::self;    // each rank of this axis holds a shard; self: every rank holds everything
  Axis copied_over = Axis::replica;  // the ranks of this axis hold the same shard
  Sharding sharding;
  Format value;        // for parameters in memory
  Format reduce_wire;  // for gradients while they travel
  Format gather_wire;  // for parameters while they travel

  /// Returns true if gradients are sums over several ranks.
  bool reduces(const Mesh& mesh) const { return mesh.group_size(sums_over) > 1; }
  bool is_sharded() const { return sharding.states; }
  /// Returns the ranks whose copies and shards together have every element of the group once.
  Axis divided_over() const { return sums_over == Axis::expert_data ? Axis::replica : sharded_over; }
  /// Returns the ranks among which a bucket's gradients are reduced at once: into shards, or (all of them) whole.
  Axis reduces_over() const { return is_sharded() ? sharded_over : sums_over; }
  /// Returns true if sums of shards are added up once more over the ranks with the same shard.
  bool reduces_across(const Mesh& mesh) const { return is_sharded() && mesh.group_size(copied_over) > 1; }
  /// Returns true if only one of the ranks with these parameters holds the own shard.
  bool holds_alone(const Mesh& mesh) const { return is_sharded() && mesh.group_size(copied_over) == 1; }
  bool gathers_encoded() const { return gather_wire != value; }
  /// Returns true if an update writes rounded weights (bfloat16). Weights that travel as int8 are encoded later, in
  /// blocks.
  bool rounds_updates() const { return gather_wire == DType::bf16; }
  int shards(const Mesh& mesh) const { return mesh.group_size(sharded_over); }
  int shard_of(const Mesh& mesh, int rank) const { return mesh.index_in_group(sharded_over, rank); }
  /// Returns the format of sums that reduce_wire has summed once already. After int8, a second rounding would have no
  /// error feedback.
  Format across_wire() const { return reduce_wire == DType::bf16 ? DType::bf16 : DType::f32; }
  /// Returns the transfers of a step in the order in which they happen, if no slot keeps what it gathered.
  std::vector<Transfer> transfers(const Mesh& mesh, int64_t micro_batches) const;
};

/// The formats of parameters in memory, of gradients on the wire, and of sharded parameters there (none: as in memory).
struct Formats {
  Format value;
  Format reduce_wire;
  std::optional<Format> gather_wire;
};

/// Returns the placement on these ranks. Nothing is divided where no rank shares parameters, or where each would shard
/// alone. Pure. `experts`: the ranks of Axis::expert divide the parameters. The gradients then have the rows of all of
/// these ranks already, and are summed over Axis::expert_data.
Placement place(Sharding sharding, const Mesh& mesh, bool experts, const Formats& formats);

}  // namespace slipstream
