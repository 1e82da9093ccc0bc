// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of GELU.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/gelu/gelu.h"

namespace slipstream::kernels {

void gelu_forward_cuda(LaunchContext& context, const GeluForward& args);
void gelu_backward_cuda(LaunchContext& context, const GeluBackward& args);

}  // namespace slipstream::kernels
