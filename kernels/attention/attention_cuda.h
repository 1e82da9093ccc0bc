// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA side of attention: its entry points, and the paths on tensor cores that they try first (sm_90a, then
// mma.sync).
//
// Arguments are already checked and not empty, pointers are device memory. Each function enqueues on the context's
// stream and returns. Throws: ResourceError if a launch is refused.

#include <string>

#include "kernels/attention/attention.h"

namespace slipstream::kernels {

void attention_forward_cuda(LaunchContext& context, const AttentionForward& args);
void attention_backward_cuda(LaunchContext& context, const AttentionBackward& args);
void attention_block_forward_cuda(LaunchContext& context, const AttentionBlockForward& args);
void attention_block_backward_cuda(LaunchContext& context, const AttentionBlockBackward& args);

/// Enqueues. Returns false and enqueues nothing unless the GPU has compute capability 9.x, the type is bf16, head_dim
/// is 64 or 128, the block has keys, and TMA takes all rows: pointers and strides are multiples of 16 bytes. Dropout
/// needs keys whose positions begin at a multiple of four. A refusal on such a GPU and type is noted, unless the block
/// has no keys.
bool attention_forward_hopper(LaunchContext& context, const AttentionBlockForward& args);

/// As above, for at least one query. `delta` [B, H, T] holds dout . out of every row, at the beginning of the
/// workspace. Without `dkv` the block is all of causal attention, and dk and dv are written instead.
bool attention_backward_hopper(LaunchContext& context, const AttentionBlockBackward& args, const float* delta);

/// Adds to attention_fallbacks().
void note_attention_fallback(const std::string& reason);

/// Enqueues. Returns false and enqueues nothing unless the type is bf16, head_dim is 64 or 128, and all rows, also the
/// carried ones, begin at multiples of 16 bytes. Dropout needs keys whose positions begin at a multiple of four. A
/// block of a ring may use any path: the carried values have the same meaning, and dropout drops the same weights.
bool attention_forward_mma(LaunchContext& context, const AttentionBlockForward& args);

/// As above, for at least one query. `delta` [B, H, T] holds dout . out of every row. Without `dkv` the block is all of
/// causal attention, and dk and dv are written instead.
bool attention_backward_mma(LaunchContext& context, const AttentionBlockBackward& args, const float* delta);

}  // namespace slipstream::kernels
