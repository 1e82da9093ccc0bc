// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the RMS norm.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/rms_norm/rms_norm.h"

namespace slipstream::kernels {

void rms_norm_forward_cuda(LaunchContext& context, const RmsNormForward& args);
void rms_norm_backward_cuda(LaunchContext& context, const RmsNormBackward& args);

}  // namespace slipstream::kernels
