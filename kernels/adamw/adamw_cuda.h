// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of AdamW.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/adamw/adamw.h"

namespace slipstream::kernels {

void adamw_cuda(LaunchContext& context, const Adamw& args);

}  // namespace slipstream::kernels
