// SPDX-License-Identifier: Apache-2.0
#pragma once
// The only interface for launching kernels.
//
// Sources include <launch.h>, <shared.h> and <ptx.h> by include path: tests/emulation has files of the same names that
// run the kernels on the host.

#include <cuda_runtime.h>

#include <cstddef>
#include <tuple>

#include "engine/device/work.h"

namespace slipstream::kernels {

inline cudaStream_t stream_of(const LaunchContext& context) { return static_cast<cudaStream_t>(context.native_stream); }

/// Throws: ResourceError with the runtime's own message unless `status` is success; `what` names the operation.
void cuda_check(cudaError_t status, const char* what);

/// The largest shared memory of a block on this GPU: 99 KiB (8.6, 8.9, 12.0), 163 KiB (8.0) or 227 KiB (9.0, 10.0).
/// Queried once.
size_t shared_memory_bytes();

/// The compute capability of this GPU times 10: 90 on H100 and H200. Queried once.
int compute_capability();

/// The number of multiprocessors of this GPU. Queried once.
int multiprocessors();

/// May `kernel` begin before the kernels before it in its stream have ended? It may if SLIPSTREAM_EARLY_LAUNCH allows
/// it, the GPU can do it (compute capability 9.0), and the kernel was compiled for such GPUs, so that it has the wait.
bool begins_early(const void* kernel);

/// The registers that each thread of a compiled kernel has at its launch.
int registers_of(const void* kernel);
template <typename... Parameters>
int registers_of(void (*kernel)(Parameters...), int /*threads*/) {
  return registers_of(reinterpret_cast<const void*>(kernel));
}

/// Every kernel begins with ptx::after_earlier_kernels, or with ptx::wait_for_earlier_kernels, which lets no later
/// kernel begin. Only the set-up of barriers and shared memory may come before this wait, because until then the
/// earlier kernels may still read and write all global memory. All threads wait, and none returns first. A kernel
/// therefore ends only after those before it, and a wait for the kernel just before is a wait for all of them. Kernels
/// of libraries, copies, records and waits for other streams begin after the whole kernel before them, as always.
///
/// Enqueues. Runs `kernel` on `grid` blocks of `block` threads with `shared_bytes` of dynamic shared memory: at most 99
/// KiB, which every GPU has (and the emulated device exactly), or shared_memory_bytes().
/// Throws: ResourceError if the launch is refused.
template <typename... Parameters, typename... Args>
void launch(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            const Args&... args) {
  std::tuple<Parameters...> values(static_cast<Parameters>(args)...);
  // More than 48 KiB of static and dynamic shared memory together must be requested explicitly (CUDA programming guide,
  // "Technical Specifications per Compute Capability"). The static memory is not known here; the emulated device checks
  // it.
  if (shared_bytes > 32 * 1024)
    cuda_check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "asking for shared memory");
  std::apply(
      [&](Parameters&... value) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&value))...};
        cudaLaunchAttribute early{};
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        const void* function = reinterpret_cast<const void*>(kernel);
        const cudaLaunchConfig_t config{.gridDim = grid,
                                        .blockDim = block,
                                        .dynamicSmemBytes = shared_bytes,
                                        .stream = stream,
                                        .attrs = &early,
                                        .numAttrs = begins_early(function) ? 1u : 0u};
        cuda_check(cudaLaunchKernelExC(&config, function, pointers), "launching a kernel");
      },
      values);
}

}  // namespace slipstream::kernels
