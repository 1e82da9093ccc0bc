// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks of the flags that choose among tokens.

#include "kernels/sample/sample.h"

namespace slipstream::runtime {

using kernels::SamplingOptions;

/// Pure. Throws: ConfigError naming the flag that is out of range.
void check_sampling(const SamplingOptions& options);

}  // namespace slipstream::runtime
