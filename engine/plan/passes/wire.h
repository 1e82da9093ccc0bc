// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a bucket travels: its gradients to their sum, its parameters back from their shards, as floats or encoded.
//
// Encoded, a collective has works before and after it on its channel's stream: encode, the collective, decode.
// Gradients go by all_to_all, so that sums are made in float, in rank order, from what was sent: half (bfloat16) or a
// quarter (int8) of the bytes of a reduce_scatter of floats, and rounded once. The buffers that hold what is encoded
// are one bucket wide: buckets take turns.

#include <optional>
#include <string>
#include <vector>

#include "engine/plan/passes/passes.h"

namespace slipstream {

/// The gradients of a bucket, ready to be summed over data ranks.
struct Reduction {
  std::string label;  // "bucket3", "layer1/0"
  size_t bucket = 0;
  Slice from;                       // the whole bucket, float
  Slice to;                         // where the sum goes: this rank's shard, or (stage 0) all of `from`
  Point ready;                      // `from` is complete
  std::optional<Point> not_before;  // `to` may be written; other stages are there too
  std::optional<Point> before;      // the spine item that next writes `from`, when it is a slot
};

/// Appends what reduces a bucket inside the group that shares it. Returns the point when `to` is complete.
Point reduce(const Job& job, Plan& plan, Reduced& reduced, const Reduction& what);

/// Hybrid sharding: appends the sum of a bucket's shard over the groups that each hold all shards, on a channel of its
/// own. It travels as bfloat16 where gradients do, else as floats: after int8 a second rounding would have no error
/// feedback, and a shard is an n-th of the bytes. Where a collective's own sum of bfloat16 may round at every hop
/// (PlanOptions::sums_by_exchange) it goes by exchange, too.
Point reduce_across(const Job& job, Plan& plan, Reduced& reduced, size_t bucket, Point ready, Point inside);

/// Says in which order reductions use the buffers for what is encoded: as they become ready. Call when all are
/// appended.
void take_turns(const Reduced& reduced, Plan& plan);

/// The parameters of a bucket, to be gathered from the shards.
struct Gathering {
  std::string label;
  size_t bucket = 0;
  Slice from;                   // this rank's shard, as it travels
  Slice to;                     // the whole bucket, as the model computes
  std::vector<Point> updated;   // the shards are current, and nothing holds it back
  std::vector<Point> to_free;   // `to` may be written
  std::optional<Point> before;  // the spine item that first reads it, when it is a slot
};

/// Appends what fills `to` on every rank, this one's shard too, with what was sent. Returns the points of all tasks.
std::vector<Point> gather(const Job& job, Plan& plan, const Gathering& what);

/// Appends what makes of an updated shard what travels. Returns its point; nothing where the optimizer has done it.
std::optional<Point> encode_shard(const Job& job, Plan& plan, size_t bucket, const std::vector<Point>& updated);

}  // namespace slipstream
