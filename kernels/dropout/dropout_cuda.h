// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of dropout.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/dropout/dropout.h"

namespace slipstream::kernels {

void dropout_cuda(LaunchContext& context, const Dropout& args);

}  // namespace slipstream::kernels
