// SPDX-License-Identifier: Apache-2.0
#pragma once
// Scratch memory and library handles of a stream: taken once per stream, never shared between streams.

#include <cstdint>

#include "engine/device/work.h"

namespace slipstream::kernels {

/// Bytes that one kernel launch, and the one that follows it, may use as scratch.
constexpr int64_t kScratchBytes = int64_t{8} << 20;
/// Bytes that cuBLASLt may use as workspace on a stream: what NVIDIA advises for Hopper; each stream has its own.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

/// Memory of the context's stream, kScratchBytes, aligned to 256. What it holds lasts until the next op on that stream.
/// The first call on a stream allocates: make it before a step is captured (prepare_stream). Throws: ResourceError.
void* scratch_of(const LaunchContext& context);

/// Blocks. Takes what the ops of a stream need (scratch, cuBLASLt handle and workspace). Throws: ResourceError.
void prepare_stream(void* native_stream);

/// Blocks. Gives it all back; after the stream's last work, before the stream is destroyed. Nothing if never prepared.
void release_stream(void* native_stream);

}  // namespace slipstream::kernels
