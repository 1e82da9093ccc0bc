// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench kernels: times every op with its bound.

#include "trainer/bench/options.h"

namespace slipstream::bench {

/// Blocks. Returns the exit code. Throws: ConfigError, ResourceError.
int bench_kernels(const KernelsOptions& options);

}  // namespace slipstream::bench
