// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lower bound of the time of a data-parallel step, sharded or not, on a link, for any buckets and knobs.

#include <cstdint>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

struct BoundInput {
  double bytes_per_second = 0;  // the rate of a rank's port
  int64_t latency_ns = 0;       // the latency of one round
  int ranks = 1;
  std::vector<int64_t> spine_ns;  // the time of each spine item of the training plan
};

struct IdealBound {
  int64_t compute_ns = 0;  // the time of all spine items
  int64_t wire_ns = 0;     // the time of all bytes at line rate
  int64_t bound_ns = 0;
};

/// The bound is the maximum over k of (the time at which the gradient of the k-th part in completion order is ready +
/// the bytes still to send / bandwidth) + one latency + the work that must follow the last sum, and never below
/// max(compute, wire). Without clipping, that work is the update of the last part (with a split tied embedding, of the
/// last part of its table). With clipping, it is the clip factor and the update of everything. The share of a part in
/// all updates is its share of the elements. So the bound depends on the division into buckets only through `spine_ns`,
/// which has each bucket's update in whole nanoseconds, and through the padding of the buckets in `compute`. The parts
/// themselves depend on the model: overlap.bucket_size is also the size of the chunks in which the head's gradient
/// becomes ready.
///
/// Pure. With ZeRO, gradients are sent once instead of twice, and parameters are gathered as often as the plan does.
/// With clipping, the next step begins when the parameters before the layers have been gathered, after the plan's first
/// update. For such steps the bound holds for plans whose first update takes as long as this plan's.
IdealBound ideal_bound(const Job& job, const BoundInput& input);

}  // namespace slipstream
