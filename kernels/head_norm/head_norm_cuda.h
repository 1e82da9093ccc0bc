// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the norm of heads.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/head_norm/head_norm.h"

namespace slipstream::kernels {

void head_norm_forward_cuda(LaunchContext& context, const HeadNormForward& args);
void head_norm_backward_cuda(LaunchContext& context, const HeadNormBackward& args);

}  // namespace slipstream::kernels
