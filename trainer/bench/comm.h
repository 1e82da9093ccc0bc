// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench comm: every verb and algorithm of the run's communicator by size, and the link that explains them.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/bench/options.h"

namespace slipstream::bench {

struct CommBenchOptions : BenchOptions {
  std::string smallest = "1KiB", largest = "256MiB";  // operations
  std::vector<std::string> verbs, algorithms;         // empty: all
  double seconds = 1;                                 // most time of a row
  std::string line_rate;                              // of the link, for instance 1Gbit/s; empty: not compared
  std::string machine;                                // path of the machine file to write; empty: none
};

/// Blocks. Collective. Returns the exit code, 6 if a result is wrong. Throws: Error in a world of one rank.
int bench_comm(const CommBenchOptions& options);

}  // namespace slipstream::bench
