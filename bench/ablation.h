// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench overlap --ablate: what each knob of the overlap is worth, one at a time.

#include <functional>
#include <string>
#include <vector>

#include "bench/options.h"
#include "engine/config/config.h"
#include "runtime/device_assignment.h"
#include "runtime/world.h"

namespace slipstream::bench {

/// A knob and the value that takes away what it does for overlap.
struct Ablation {
  std::string key, value;
  std::function<bool(const RunConfig&)> has_effect;  // beside the run file's other values
};

/// Every key of [overlap] that has a second value, and those of [zero] and [optimizer] that decide when something may
/// travel.
const std::vector<Ablation>& ablations();

/// Blocks. Collective. Paced steps of the run file as it is, twice, and without each knob, interleaved; one table for
/// every ratio of a layer's gather to its forward pass, or for the run file's emulated link.
/// Throws: ConfigError: one rank, or neither a ratio nor a link.
void bench_ablation(const OverlapOptions& options, runtime::World& world, const runtime::DeviceAssignment& assignment,
                    const RunConfig& config);

}  // namespace slipstream::bench
