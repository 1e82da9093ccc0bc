// SPDX-License-Identifier: Apache-2.0
// The error of a refused CUDA call, and properties of the GPU and of a compiled kernel: compute capability, limits,
// registers.

#include <launch.h>

#include "engine/device/cuda/cuda_check.h"
#include "kernels/common/early_launch.h"

namespace slipstream::kernels {

void cuda_check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) cuda::fail(status, what);
}

namespace {
int attribute_of_gpu(cudaDeviceAttr attribute, const char* what) {
  int device = 0, value = 0;
  cuda_check(cudaGetDevice(&device), "asking for the current GPU");
  cuda_check(cudaDeviceGetAttribute(&value, attribute, device), what);
  return value;
}
}  // namespace

size_t shared_memory_bytes() {
  static const int bytes =
      attribute_of_gpu(cudaDevAttrMaxSharedMemoryPerBlockOptin, "asking for the shared memory of a GPU");
  return static_cast<size_t>(bytes);
}

int compute_capability() {
  static const int capability =
      10 * attribute_of_gpu(cudaDevAttrComputeCapabilityMajor, "asking for the compute capability of a GPU") +
      attribute_of_gpu(cudaDevAttrComputeCapabilityMinor, "asking for the compute capability of a GPU");
  return capability;
}

int multiprocessors() {
  static const int count = attribute_of_gpu(cudaDevAttrMultiProcessorCount, "asking for the multiprocessors of a GPU");
  return count;
}

static cudaFuncAttributes attributes_of(const void* kernel) {
  cudaFuncAttributes attributes{};
  cuda_check(cudaFuncGetAttributes(&attributes, kernel), "asking for the attributes of a kernel");
  return attributes;
}

int registers_of(const void* kernel) { return attributes_of(kernel).numRegs; }

bool begins_early(const void* kernel) {
  // All kernels are compiled for the same architectures (meson.build), so one kernel answers for all. Code for an older
  // architecture that the driver has compiled for this GPU lacks the wait.
  static const bool all = early_launch(compute_capability()) && attributes_of(kernel).ptxVersion >= 90;
  return all;
}

}  // namespace slipstream::kernels
