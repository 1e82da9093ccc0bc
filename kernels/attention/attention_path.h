// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels that attention on a GPU may use, the fastest first. If a path has no kernels for a block, the block takes
// the next path.

#include <string>
#include <string_view>

namespace slipstream::kernels {

enum class AttentionPath {
  hopper,  // TMA and warpgroup products of sm_90a
  mma,     // mma.sync, from compute capability 8.0 on
  plain    // no tensor cores
};
std::string_view name_of(AttentionPath path);

/// The first path that attention tries on a GPU of this compute capability times 10: the fastest one that the GPU has,
/// or that of SLIPSTREAM_ATTENTION=hopper|mma|plain, which run.json records. Throws: ConfigError if the variable has
/// another value, or names a path that this GPU does not have.
AttentionPath attention_path(int capability);

/// The number of queries per step of attention backward with heads of 64 on sm_90a: 64, which was measured, or that of
/// SLIPSTREAM_ATTENTION_QUERIES=64|128, which run.json records. Throws: ConfigError if the variable has another value.
int attention_backward_queries();

/// Throws: ConfigError if one of these variables has another value than those above.
void require_attention_path();

/// A remark for a GPU that has tensor core instructions of its own for which attention has no kernels; empty for
/// others.
std::string attention_remark(int capability);

}  // namespace slipstream::kernels
