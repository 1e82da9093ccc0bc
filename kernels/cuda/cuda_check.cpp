// SPDX-License-Identifier: Apache-2.0
// The error of a refused CUDA call.

#include <launch.h>

#include "engine/base/check.h"

namespace slipstream::kernels {

void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error where it does not stick
  throw ResourceError("[cuda] {}: {} ({}). See that the driver, its version and the memory of the device are what the run needs.",
                      what, cudaGetErrorString(status), static_cast<int>(status));
}

}  // namespace slipstream::kernels
