// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench step: whole training steps by the host's clock.

#include <string>

#include "bench/options.h"

namespace slipstream::bench {

struct StepOptions : BenchOptions {
  std::string export_dir;   // receives the first weights and the batches; empty: nothing is written
  bool plain_loop = false;  // time the same works in a plain loop beside the steps
  double line_rate = 0;     // bytes per second of the link for which a bound is printed; 0: none
  int ranks = 0;            // that this link joins; 0: the ranks of the launcher
};

/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_step(const StepOptions& options);

}  // namespace slipstream::bench
