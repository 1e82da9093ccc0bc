// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels that attention on a GPU may use, fastest first. A block that a path has no kernels for takes the next
// one.

#include <string>
#include <string_view>

namespace slipstream::kernels {

enum class AttentionPath {
  hopper,  // TMA and warpgroup products of sm_90a
  mma,     // mma.sync, from compute capability 8.0 on
  plain    // no tensor cores
};
std::string_view name_of(AttentionPath path);

/// The first path that attention tries on a GPU of this compute capability times 10: the fastest that the GPU has, or
/// that of SLIPSTREAM_ATTENTION=hopper|mma|plain, which run.json records. Throws: ConfigError if it has another value,
/// or names a path that this GPU does not have.
AttentionPath attention_path(int capability);

/// Queries of a step of attention backward with heads of 64 on sm_90a: 64, the ones that were measured, or those of
/// SLIPSTREAM_ATTENTION_QUERIES=64|128, which run.json records. Throws: ConfigError if it has another value.
int attention_backward_queries();

/// Throws: ConfigError if one of these variables has another value than those above.
void require_attention_path();

/// The remark on a GPU whose own tensor core instructions attention has no kernels for; empty on others.
std::string attention_remark(int capability);

}  // namespace slipstream::kernels
