// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of SwiGLU.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/swiglu/swiglu.h"

namespace slipstream::kernels {

void swiglu_forward_cuda(LaunchContext& context, const SwigluForward& args);
void swiglu_backward_cuda(LaunchContext& context, const SwigluBackward& args);

}  // namespace slipstream::kernels
