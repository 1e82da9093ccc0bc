// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench comm: measures every verb and algorithm of the run's communicator by size, and the link that
// explains the times.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/bench/options.h"

namespace slipstream::bench {

struct CommBenchOptions : BenchOptions {
  std::string smallest = "1KiB", largest = "256MiB";  // sizes of operations
  std::vector<std::string> verbs, algorithms;         // empty: all
  double seconds = 1;                                 // the time limit of a row
  std::string line_rate;                              // the rate of the link, for instance 1Gbit/s; empty: not compared
  std::string machine;                                // the path of the machine file to write; empty: none
};

/// Blocks. Collective. Returns the exit code, which is 6 if a result is wrong. Throws: Error in a world of one rank.
int bench_comm(const CommBenchOptions& options);

}  // namespace slipstream::bench
