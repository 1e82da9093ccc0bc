// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the matrix products.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/matmul/matmul.h"

namespace slipstream::kernels {

void matmul_forward_cuda(LaunchContext& context, const MatmulForward& args);
void matmul_backward_input_cuda(LaunchContext& context, const MatmulBackwardInput& args);
/// The part of matmul_backward_input_cuda that follows a plain product in dx: dx *= gelu'(pre_activation), and dbias.
void gelu_gradient_cuda(LaunchContext& context, const MatmulBackwardInput& args);
/// `dy_stride` is resolved (never 0).
void matmul_backward_weight_cuda(LaunchContext& context, const MatmulBackwardWeight& args);

}  // namespace slipstream::kernels
