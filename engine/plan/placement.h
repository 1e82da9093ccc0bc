// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who holds what: how the ranks with the same parameters share a parameter group's values, gradients and states.
//
// Passes, memory, norm, checkpoints, the comparison of replicas, search bounds and reports ask a placement; none of
// them knows ZeRO's stages. The sources are Rajbhandari et al. 2020 (ZeRO) and Zhang et al. 2022 (MiCS: copies of
// shards).

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/format.h"
#include "engine/plan/mesh.h"
#include "engine/plan/plan.h"

namespace slipstream {

/// What ranks divide among themselves. The rest is whole on each of them.
struct Sharding {
  bool states = false;      // the optimizer's, with the master weights
  bool gradients = false;   // pass through a slot; only the sum of the own shard stays
  bool parameters = false;  // pass through a slot, gathered for each use
  bool operator==(const Sharding&) const = default;
};
/// ZeRO's stages: 1 divides states, 2 gradients as well, 3 parameters as well. No other code of a plan reads the
/// number.
constexpr Sharding sharding_of_stage(int64_t zero_stage) {
  return {.states = zero_stage >= 1, .gradients = zero_stage >= 2, .parameters = zero_stage >= 3};
}

/// A collective that carries every element of a group in a step.
struct Transfer {
  Op op;
  Axis axis;
  Format wire;
  int64_t times;          // in a step
  bool of_shard = false;  // of the elements of a shard only
};

struct Placement {
  Axis sums_over = Axis::replica;    // gradients are summed along it
  Axis sharded_over = Axis::self;    // each of its ranks holds a shard; self: every rank holds all
  Axis copied_over = Axis::replica;  // its ranks hold the same shard
  Sharding sharding;
  Format value;        // of parameters in memory
  Format reduce_wire;  // of gradients while they travel
  Format gather_wire;  // of parameters while they travel

  bool is_sharded() const { return sharding.states; }
  /// Ranks among which a bucket's gradients are reduced at once: into shards, or (all of them) whole.
  Axis reduces_over() const { return is_sharded() ? sharded_over : sums_over; }
  /// Are sums of shards added up once more over the ranks with the same shard?
  bool reduces_across(const Mesh& mesh) const { return is_sharded() && mesh.group_size(copied_over) > 1; }
  /// Does only one rank with these parameters hold the own shard?
  bool holds_alone(const Mesh& mesh) const { return is_sharded() && mesh.group_size(copied_over) == 1; }
  bool gathers_encoded() const { return gather_wire != value; }
  /// Does an update write rounded weights (bfloat16)? Weights that travel as int8 are encoded later, in blocks.
  bool rounds_updates() const { return gather_wire == DType::bf16; }
  int shards(const Mesh& mesh) const { return mesh.group_size(sharded_over); }
  int shard_of(const Mesh& mesh, int rank) const { return mesh.index_in_group(sharded_over, rank); }
  /// Of sums that reduce_wire has summed once already: after int8 a second rounding would have no error feedback.
  Format across_wire() const { return reduce_wire == DType::bf16 ? DType::bf16 : DType::f32; }
  /// The transfers of a step without slots that keep what they gathered, in the order in which they happen.
  std::vector<Transfer> transfers(const Mesh& mesh, int64_t micro_batches) const;
};

/// The placement on these ranks: nothing is divided where no rank shares parameters, or each would shard alone. Pure.
/// `gather_wire`: of sharded parameters; none: their type in memory.
Placement place(Sharding sharding, const Mesh& mesh, Format value, Format reduce_wire,
                std::optional<Format> gather_wire);

}  // namespace slipstream
