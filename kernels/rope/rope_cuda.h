// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of rotary embeddings.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/rope/rope.h"

namespace slipstream::kernels {

void rope_cuda(LaunchContext& context, const Rope& args);

}  // namespace slipstream::kernels
