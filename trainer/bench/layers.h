// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench layers: measures communication inside layers, for tensor and context parallelism.

#include <vector>

#include "trainer/bench/options.h"

namespace slipstream::bench {

struct LayersOptions : BenchOptions {
  std::vector<double> ratios;              // communication / compute
  double layer_ms = 8;                     // the forward pass of a layer
  std::vector<int> chunks = {1, 2, 4, 8};  // values of overlap.tensor_chunks
};

/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_layers(const LayersOptions& options);

}  // namespace slipstream::bench
