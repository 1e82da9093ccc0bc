// SPDX-License-Identifier: Apache-2.0
#pragma once
// Scratch memory and library handles of a stream. They are allocated once per stream and never shared between streams.

#include <cstdint>

#include "engine/device/work.h"

namespace slipstream::kernels {

/// Bytes of scratch for one kernel launch and the next one.
constexpr int64_t kScratchBytes = int64_t{8} << 20;
/// The bytes of cuBLASLt's workspace on a stream, as NVIDIA advises for Hopper. Each stream has its own.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

/// The scratch of the context's stream: kScratchBytes, aligned to 256. Its contents last until the next op on that
/// stream. The first call on a stream allocates, so make it before a step is captured (prepare_stream). Throws:
/// ResourceError.
void* scratch_of(const LaunchContext& context);

/// Blocks. Allocates the resources of a stream's ops (scratch, cuBLASLt handle and workspace). Throws: ResourceError.
void prepare_stream(void* native_stream);

/// Blocks. Frees them after the stream's last work, before the stream is destroyed. Does nothing for a stream that was
/// never prepared.
void release_stream(void* native_stream);

}  // namespace slipstream::kernels
