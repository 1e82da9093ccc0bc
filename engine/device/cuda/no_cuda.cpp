// SPDX-License-Identifier: Apache-2.0
// The cuda device of a build without CUDA: every call throws or returns the reason.

#include "engine/base/check.h"
#include "engine/device/cuda/cuda_choice.h"
#include "engine/device/cuda/cuda_memory.h"
#include "engine/device/device.h"

namespace slipstream {

CudaDevices find_cuda_devices() {
  return {.ids = {},
          .reason = "this build has no CUDA device; configure with -Dcuda=enabled where a CUDA toolkit is installed"};
}

namespace {

[[noreturn]] void refuse(int index) {
  throw ResourceError(
      "[cuda] device {} was requested, but this build has no CUDA device. Set device.kind = \"cpu\", "
      "or configure with -Dcuda=enabled where a CUDA toolkit is installed.",
      index);
}

}  // namespace

CudaGpu describe_cuda_device(int index) { refuse(index); }
std::unique_ptr<Device> make_cuda_device(int index) { refuse(index); }
std::unique_ptr<Device> make_cuda_device(int index, const CudaMemory&) { refuse(index); }

}  // namespace slipstream
