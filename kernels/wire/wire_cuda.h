// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the wire formats.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/wire/wire.h"

namespace slipstream::kernels {

void encode_cuda(LaunchContext& context, const Encode& args);
void decode_cuda(LaunchContext& context, const Decode& args);
void sum_parts_cuda(LaunchContext& context, const SumParts& args);

}  // namespace slipstream::kernels
