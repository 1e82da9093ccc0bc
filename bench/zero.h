// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench overlap --zero: stages, prefetch depths and exposed gathers beside their bounds.

#include <cstdint>
#include <vector>

#include "bench/options.h"
#include "engine/config/config.h"
#include "engine/plan/job.h"
#include "runtime/device_assignment.h"
#include "runtime/world.h"

namespace slipstream::bench {

/// Times of the spine items of the training plan for a model whose layers take `layer_ns` forward and twice as much
/// backward, what is before and after the layers half of that, and everything else next to nothing. Pure.
std::vector<int64_t> even_spine_ns(const Job& job, int64_t layer_ns);

/// Bytes that a rank sends when the largest layer is gathered. Pure.
int64_t layer_gather_bytes(const Job& job);

/// Blocks. Collective. Paced steps of every stage that the command names, interleaved, one table for every ratio of a
/// layer's gather to its forward pass.
void bench_zero(const OverlapOptions& options, runtime::World& world, const runtime::DeviceAssignment& assignment,
                const RunConfig& config);

}  // namespace slipstream::bench
