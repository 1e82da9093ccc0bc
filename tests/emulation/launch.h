// SPDX-License-Identifier: Apache-2.0
#pragma once
// The emulated counterpart of kernels/cuda/launch.h: a launch passes the grid to emulation::enqueue.

#include <cuda_runtime.h>

#include <source_location>
#include <tuple>

#include "engine/device/work.h"

namespace slipstream::kernels {

/// A stream that remembers where it was named, for the emulator's errors.
struct Site {
  Site(cudaStream_t stream_, const std::source_location& at_ = std::source_location::current())
      : stream(stream_), at(at_) {}  // NOLINT: implicit
  cudaStream_t stream;
  std::source_location at;
};

inline cudaStream_t stream_of(const LaunchContext& context) { return context.native_stream; }
inline void cuda_check(cudaError_t, const char*) {}
inline size_t shared_memory_bytes() { return emulation::kSharedMemoryBytes; }

template <typename... Parameters, typename... Args>
void launch(Site site, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, const Args&... args) {
  const std::tuple<Parameters...> values(static_cast<Parameters>(args)...);
  emulation::enqueue(site.stream, [=, at = site.at] {
    emulation::run(
        {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, [&] { std::apply(kernel, values); }, at);
  });
}

}  // namespace slipstream::kernels
