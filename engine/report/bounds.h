// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lower bound of the time of a data-parallel step, sharded or not, on a link, for any buckets and knobs.

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

/// max over k of (time at which the gradient of the k-th part in completion order is ready + bytes still to send /
/// bandwidth) + one latency + the work that must follow the last sum, and never below max(compute, wire). That work is
/// the update of the last part (with a split tied embedding: of the last part of its table) or, with clipping, the clip
/// factor and the update of everything; a part's share of all updates is that of its elements. So the bound depends on
/// the division into buckets only through `spine_ns`: each bucket's update in whole nanoseconds, and in `compute` their
/// padding. The parts themselves depend on the model: overlap.bucket_size is also the size of the chunks in which the
/// head's gradient becomes ready.
///
/// Pure. With ZeRO, gradients are sent once instead of twice, and parameters are gathered as often as the plan does.
/// With clipping the next step begins when the parameters before the layers have been gathered, after the plan's first
/// update: there the bound holds for plans whose first update takes as long.
IdealBound ideal_bound(const Job& job, const BoundInput& input);

}  // namespace slipstream
