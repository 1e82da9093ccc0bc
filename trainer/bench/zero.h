// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench overlap --zero: measures stages, prefetch depths and exposed gathers with their bounds.

#include <cstdint>
#include <vector>

#include "engine/plan/job.h"
#include "trainer/bench/bench.h"
#include "trainer/bench/harness.h"

namespace slipstream::bench {

/// Returns the times of the training plan's spine items: layers take `layer_ns` forward and twice that backward, the
/// pieces before and after the layers half of that, and all other items almost none. Pure.
std::vector<int64_t> even_spine_ns(const Job& job, int64_t layer_ns);

/// Returns the bytes that a rank sends in the gather of the largest layer. Pure.
int64_t layer_gather_bytes(const Job& job);

/// Blocks. Collective. Runs interleaved paced steps of every requested stage. Prints one table for every ratio of a
/// layer's gather to its forward pass.
void bench_zero(const OverlapOptions& options, const Setting& setting);

}  // namespace slipstream::bench
