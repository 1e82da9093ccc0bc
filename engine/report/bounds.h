// SPDX-License-Identifier: Apache-2.0
#pragma once
// The least time that a data-parallel step, sharded or not, can take on a link, whatever the buckets and knobs.

#include <cstdint>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

struct BoundInput {
  double bytes_per_second = 0;  // of a rank's port
  int64_t latency_ns = 0;       // of one round
  int ranks = 1;
  std::vector<int64_t> spine_ns;  // time of each spine item of the training plan
};

struct IdealBound {
  int64_t compute_ns = 0;  // all spine items
  int64_t wire_ns = 0;     // all bytes at line rate
  int64_t bound_ns = 0;
};

/// max over k of (when the gradient of the k-th part in completion order is ready + bytes still to send / bandwidth) +
/// one latency + what must follow the last sum, and never below max(compute, wire). What must follow is the update of
/// the last part (of a split tied embedding: the last of its table), or, when clipping, the clip factor and the update
/// of everything; a part's share of all updates is that of its elements. So the bound depends on how parts become
/// buckets only by what `spine_ns` does: each bucket's update in whole nanoseconds, and in `compute` their padding.
/// What parts there are is the model's: overlap.bucket_size is also the size of the chunks in which the head's gradient
/// becomes ready.
///
/// With ZeRO gradients are sent once instead of twice, parameters are gathered as often as the plan does, and (when
/// clipping) the next step begins when what is before the layers has been gathered, which follows the plan's first
/// update: there the bound is one of plans whose first update takes as long. Pure.
IdealBound ideal_bound(const Job& job, const BoundInput& input);

}  // namespace slipstream
