// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moves a bucket's gradients to their sum and its parameters back from their shards, either as floats or encoded.
//
// With encoding, a collective has works before and after it on its channel's stream: encode, the collective, decode.
// Gradients use all_to_all, so that sums are computed in float, in rank order, from what was sent. This takes half
// (bfloat16) or a quarter (int8) of the bytes of a reduce_scatter of floats, and rounds once. The encoding buffers have
// the size of one bucket, and buckets take turns.

#include <optional>
#include <string>
#include <vector>

#include "engine/plan/passes/passes.h"

namespace slipstream {

/// The gradients of a bucket, ready to be summed over data ranks.
struct Reduction {
  std::string label;  // "bucket3", "layer1/0"
  size_t bucket = 0;
  Slice from;                       // the whole bucket in float
  Slice to;                         // the destination of the sum: this rank's shard, or (not sharded) all of `from`
  Point ready;                      // `from` is complete
  std::optional<Point> not_before;  // `to` may be written, and other stages have gradients too
  std::optional<Point> before;      // the spine item that next writes `from`, if it is a slot
};

/// Appends the reduction of a bucket within its shard group. Returns the point at which `to` is complete.
Point reduce(const Job& job, Plan& plan, Reduced& reduced, const Reduction& what);

/// Hybrid sharding: appends the sum of a bucket's shard over the groups that each hold all shards, on a separate
/// channel. The shard travels as bfloat16 if gradients do. Otherwise it travels as floats, because after int8 a second
/// rounding would have no error feedback, and a shard is only an n-th of the bytes. If a collective's own sum of
/// bfloat16 may round at every step (PlanOptions::sums_by_exchange), this sum is computed by an exchange, too.
Point reduce_across(const Job& job, Plan& plan, Reduced& reduced, size_t bucket, Point ready, Point inside);

/// Fixes the order in which reductions use the encoding buffers: the order in which they become ready. In this order, a
/// bucket's reduction also waits for the end of the one that is `max_inflight_buckets` before it. Must be called when
/// all reductions are appended.
void take_turns(const Reduced& reduced, int64_t max_inflight_buckets, Plan& plan);

/// The parameters of a bucket, to be gathered from the shards.
struct Gathering {
  std::string label;
  size_t bucket = 0;
  Slice from;                   // this rank's shard in the type that travels
  Slice to;                     // the whole bucket in the model's type
  std::vector<Point> updated;   // the shards are current, and nothing else holds the gather back
  std::vector<Point> to_free;   // `to` may be written
  std::optional<Point> before;  // the spine item that first reads it, if it is a slot
};

/// Appends the tasks that fill `to` on every rank from what was sent, including this rank's own shard. Returns the
/// points of all tasks.
std::vector<Point> gather(const Job& job, Plan& plan, const Gathering& what);

/// Appends the encoding of an updated shard. Returns its point, or none if the optimizer has already encoded it.
std::optional<Point> encode_shard(const Job& job, Plan& plan, size_t bucket, const std::vector<Point>& updated);

}  // namespace slipstream
