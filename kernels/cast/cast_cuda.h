// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the conversions and sums.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/cast/cast.h"

namespace slipstream::kernels {

void cast_cuda(LaunchContext& context, const Cast& args);
void add_cuda(LaunchContext& context, const Add& args);

}  // namespace slipstream::kernels
