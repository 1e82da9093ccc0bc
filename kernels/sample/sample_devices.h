// SPDX-License-Identifier: Apache-2.0
#pragma once
// Declarations that the dispatch of the choice of tokens shares with its devices.

#include "kernels/sample/sample.h"
#include "kernels/sample/sample_rule.h"

namespace slipstream::kernels {

/// Pure. The arguments are already checked.
SamplingNumbers numbers_of(const Sample& args);

/// Enqueue. The arguments are checked and not empty. Throw: ResourceError if a launch is refused.
void sample_cuda(LaunchContext& context, const Sample& args);
void next_rows_cuda(LaunchContext& context, const NextRows& args);

}  // namespace slipstream::kernels
