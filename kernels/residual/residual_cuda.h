// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the residual sum.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/residual/residual.h"

namespace slipstream::kernels {

void residual_cuda(LaunchContext& context, const Residual& args);

}  // namespace slipstream::kernels
