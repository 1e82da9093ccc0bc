// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench overlap: times the gradient reduce modes with their bounds.

#include "trainer/bench/options.h"

namespace slipstream::bench {

/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_overlap(const OverlapOptions& options);

}  // namespace slipstream::bench
