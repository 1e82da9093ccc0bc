// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the sums of squares.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/sum_squares/sum_squares.h"

namespace slipstream::kernels {

void sum_squares_cuda(LaunchContext& context, const SumSquares& args);

}  // namespace slipstream::kernels
