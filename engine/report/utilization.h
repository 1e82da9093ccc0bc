// SPDX-License-Identifier: Apache-2.0
#pragma once
// Model operations as a share of the machine's peak.

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/config/machine.h"
#include "engine/plan/job.h"

namespace slipstream {

/// Pure. Returns the floating-point operations of one training step on all ranks: the forward and backward passes of
/// the model as its op cards count them, once each, without recomputation, update and encoding of messages. `stages`
/// has the job of one rank of every pipeline stage.
double model_flops(const std::vector<std::shared_ptr<const Job>>& stages);

/// Pure. Returns the peak of one rank for the type in which the model computes, or 0 if the machine file has none.
double peak_flops_per_second(const Machine& machine, DType dtype);

/// Pure. Returns the model flops utilization: `flops` of a step that takes `step_ms`, as a share of the peak of `ranks`
/// ranks.
inline double utilization(double flops, double step_ms, int ranks, double peak_flops_per_second) {
  return flops / (step_ms / 1e3 * ranks * peak_flops_per_second);
}

}  // namespace slipstream
