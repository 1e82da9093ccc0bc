// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which share of a machine's peak the operations of the model are.

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/config/machine.h"
#include "engine/plan/job.h"

namespace slipstream {

/// Floating-point operations of one training step on all ranks: the forward and backward passes of the model as its op
/// cards count them, once each. What recomputation runs again, the update and what encodes messages are no part.
/// `stages`: the job of one rank of every pipeline stage. Pure.
double model_flops(const std::vector<std::shared_ptr<const Job>>& stages);

/// The peak of one rank for the type that the model computes in; 0 where the machine has none. Pure.
double peak_flops_per_second(const Machine& machine, DType dtype);

/// Model flops utilisation: `flops` of a step that takes `step_ms`, as a share of what `ranks` ranks with this peak
/// could do. Pure.
inline double utilization(double flops, double step_ms, int ranks, double peak_flops_per_second) {
  return flops / (step_ms / 1e3 * ranks * peak_flops_per_second);
}

}  // namespace slipstream
