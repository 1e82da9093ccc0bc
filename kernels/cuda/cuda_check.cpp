// SPDX-License-Identifier: Apache-2.0
// The error of a refused CUDA call, and the shared-memory limit of a block.

#include <launch.h>

#include "engine/device/cuda/cuda_check.h"

namespace slipstream::kernels {

void cuda_check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) cuda::fail(status, what);
}

size_t shared_memory_bytes() {
  static const size_t bytes = [] {
    int device = 0, value = 0;
    cuda_check(cudaGetDevice(&device), "asking for the current GPU");
    cuda_check(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "asking for the shared memory of a GPU");
    return static_cast<size_t>(value);
  }();
  return bytes;
}

}  // namespace slipstream::kernels
