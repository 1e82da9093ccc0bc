// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench overlap --ablate: the effect of each overlap setting, one at a time.

#include <functional>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "trainer/bench/bench.h"
#include "trainer/bench/harness.h"

namespace slipstream::bench {

/// A setting, and the value that turns its overlap off.
struct Ablation {
  std::string key, value;
  std::function<bool(const RunConfig&)> has_effect;  // depends on the other values of the run file
};

/// Returns every key of [overlap] with a second value, and the keys of [zero] and [optimizer] that decide when
/// communication may start.
const std::vector<Ablation>& ablations();

/// Blocks. Collective. Runs interleaved paced steps of the unchanged run file, twice, and of the run file with each
/// setting turned off. Prints one table for every ratio of a layer's gather to its forward pass, or for the run file's
/// emulated link.
/// Throws: ConfigError for one rank, or with neither a ratio nor a link.
void bench_ablation(const OverlapOptions& options, const Setting& setting);

}  // namespace slipstream::bench
