// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the layer norm.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/layer_norm/layer_norm.h"

namespace slipstream::kernels {

void layer_norm_forward_cuda(LaunchContext& context, const LayerNormForward& args);
void layer_norm_backward_cuda(LaunchContext& context, const LayerNormBackward& args);

}  // namespace slipstream::kernels
