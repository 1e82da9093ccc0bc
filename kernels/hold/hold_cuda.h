// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of holds.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include "kernels/hold/hold.h"

namespace slipstream::kernels {

void hold_blocks_cuda(LaunchContext& context, const HoldBlocks& args);
void await_flag_cuda(LaunchContext& context, const AwaitFlag& args);
void copy_around_cuda(LaunchContext& context, const CopyAround& args);
void copy_on_device_cuda(LaunchContext& context, std::byte* to, const std::byte* from, int64_t size_bytes);

}  // namespace slipstream::kernels
