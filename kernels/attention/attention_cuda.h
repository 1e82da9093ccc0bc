// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tensor core path of attention on CUDA.

#include "kernels/attention/attention.h"

namespace slipstream::kernels {

/// Enqueues. False, and nothing is enqueued, unless the type is bf16, head_dim is 64 or 128 and all rows begin at
/// multiples of 16 bytes.
bool attention_forward_mma(LaunchContext& context, const AttentionForward& args);

/// As above; `delta` [B, H, T] holds dout . out of every row.
bool attention_backward_mma(LaunchContext& context, const AttentionBackward& args, const float* delta);

}  // namespace slipstream::kernels
