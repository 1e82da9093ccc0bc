// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench step: times whole training steps by the host's clock.

#include <string>

#include "trainer/bench/options.h"

namespace slipstream::bench {

struct StepOptions : BenchOptions {
  std::string export_dir;   // the folder of the exported initial weights and batches; empty: no export
  int in_a_row = 1;         // the steps that are issued one after the other; a time is their mean
  bool plain_loop = false;  // also time the same works in a plain loop
  double line_rate = 0;     // bytes per second of the link for the printed bound; 0: no bound
  int ranks = 0;            // the ranks that this link connects; 0: the ranks of the launcher
};

/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_step(const StepOptions& options);

}  // namespace slipstream::bench
