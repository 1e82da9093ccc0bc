// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench step: whole training steps by the host's clock.

#include <string>

#include "trainer/bench/options.h"

namespace slipstream::bench {

struct StepOptions : BenchOptions {
  std::string export_dir;   // folder of the exported initial weights and batches; empty: no export
  int in_a_row = 1;         // steps issued one behind the other, of which a time is the mean
  bool plain_loop = false;  // time the same works in a plain loop, too
  double line_rate = 0;     // bytes per second of the link of the printed bound; 0: no bound
  int ranks = 0;            // connected by this link; 0: the ranks of the launcher
};

/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_step(const StepOptions& options);

}  // namespace slipstream::bench
