// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of the cross-entropy.
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.
// Targets live on the device and cannot be refused: a target outside the vocabulary turns the loss into NaN. Nothing is
// read or written out of bounds.

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"

namespace slipstream::kernels {

void cross_entropy_cuda(LaunchContext& context, const CrossEntropy& args);
void cross_entropy_part_cuda(LaunchContext& context, const CrossEntropyPart& args);
void cross_entropy_merge_cuda(LaunchContext& context, const CrossEntropyMerge& args);

}  // namespace slipstream::kernels
