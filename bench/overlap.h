// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench overlap: the reduce modes of gradients beside their bounds.

#include <string>
#include <vector>

#include "bench/options.h"

namespace slipstream::bench {

struct OverlapOptions : BenchOptions {
  std::string compute = "real";  // real | paced
  std::vector<double> ratios;    // communication / compute; empty: the link of the run file
  std::vector<int> zero;         // stages of ZeRO to measure instead; a ratio is then a layer's gather / its forward
                                 // pass
  std::vector<int> prefetch = {1, 2};  // depths of stage 3
  bool ablate = false;                 // one knob at a time instead, paced as with `zero`
  double layer_ms = 8;                 // forward pass of a paced layer, with `zero` and `ablate`
  int ranks = 0;                       // that one process imitates; 0: the ranks of the launcher
  std::vector<std::string> forms;      // of the emulated link, one table each; empty: the run file's
};

/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_overlap(const OverlapOptions& options);

}  // namespace slipstream::bench
