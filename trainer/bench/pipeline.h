// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench pipeline: compares the bubble of every schedule with its closed form.

#include <string>
#include <vector>

#include "trainer/bench/options.h"

namespace slipstream::bench {

struct PipelineOptions : BenchOptions {
  std::string compute = "paced";  // real | paced
  std::vector<double> ratios;     // the transfer between stages / the forward pass; empty: the link of the run file
  double forward_ms = 20;         // paced: the time of a stage and micro-batch
};

/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_pipeline(const PipelineOptions& options);

}  // namespace slipstream::bench
