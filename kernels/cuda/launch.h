// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one door through which kernels are launched.
//
// Sources include <launch.h>, <shared.h> and <ptx.h> by include path: tests/emulation has files of the same names that
// run the kernels on the host.

#include <cuda_runtime.h>

#include <cstddef>
#include <tuple>

#include "engine/device/work.h"

namespace slipstream::kernels {

inline cudaStream_t stream_of(const LaunchContext& context) { return static_cast<cudaStream_t>(context.native_stream); }

/// Throws: ResourceError with the runtime's own words unless `status` is success; `what` was being done.
void cuda_check(cudaError_t status, const char* what);

/// The most shared memory that this GPU gives to a block: 99 KiB (8.6, 8.9, 12.0), 163 (8.0) or 227 (9.0, 10.0). Asked
/// once.
size_t shared_memory_bytes();

/// Enqueues. Runs `kernel` on `grid` blocks of `block` threads with `shared_bytes` of dynamic shared memory: 99 KiB at
/// most, which every GPU has (the emulated device has no more), or what shared_memory_bytes() says.
/// Throws: ResourceError if the launch is refused.
template <typename... Parameters, typename... Args>
void launch(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            const Args&... args) {
  std::tuple<Parameters...> values(static_cast<Parameters>(args)...);
  // Above 48 KiB a kernel must ask for its shared memory.
  if (shared_bytes > 48 * 1024)
    cuda_check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "asking for shared memory");
  std::apply(
      [&](Parameters&... value) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&value))...};
        cuda_check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared_bytes, stream),
                   "launching a kernel");
      },
      values);
}

}  // namespace slipstream::kernels
