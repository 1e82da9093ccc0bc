// SPDX-License-Identifier: Apache-2.0
#pragma once
// Options of the benchmarks.

#include <string>
#include <vector>

#include "engine/config/load.h"

namespace slipstream::bench {

/// Options of every benchmark of a run file.
struct BenchOptions : RunSource {
  int steps = 30;   // interleaved, counted steps
  std::string csv;  // the path of the table; empty: none
};

/// slipstream bench kernels.
struct KernelsOptions {
  int rounds = 30;                 // measured rounds
  std::string csv;                 // the path of the table; empty: none
  std::string only;                // text that rows of "op dtype size" contain; empty: all rows
  std::vector<int> threads = {1};  // one table for each value
};

/// slipstream bench overlap.
struct OverlapOptions : BenchOptions {
  std::string compute = "real";      // real | paced
  std::vector<double> ratios;        // communication / compute; empty: the link of the run file
  std::string ratio_of = "compute";  // compute or backward: the denominator of `ratios`
  std::vector<int> zero;  // ZeRO stages to measure instead; a ratio is then a layer's gather / its forward pass
  std::vector<int> prefetch = {1, 2};  // values of zero.prefetch_depth, for stage 3
  bool ablate = false;                 // measure one changed setting at a time instead, paced as with `zero`
  double layer_ms = 8;                 // with `zero` and `ablate`: the forward pass of a paced layer
  int ranks = 0;                       // the ranks that one process imitates; 0: the ranks of the launcher
  std::vector<std::string> forms;      // forms of the emulated link, one table each; empty: that of the run file
};

}  // namespace slipstream::bench
