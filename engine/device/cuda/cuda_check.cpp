// SPDX-License-Identifier: Apache-2.0
// Error messages that name what failed, where, and what to do.

#include "engine/device/cuda/cuda_check.h"

#include <atomic>
#include <exception>
#include <string>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace slipstream::cuda {
namespace {

const char* what_to_do(cudaError_t result) {
  switch (result) {
    case cudaErrorMemoryAllocation:
      return "Use a smaller model, micro-batch or sequence, or end other programs on this GPU.";
    case cudaErrorInsufficientDriver:
      return "Install a newer driver, or build with an older CUDA toolkit.";
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      return "Check CUDA_VISIBLE_DEVICES and nvidia-smi, or set device.kind = \"cpu\".";
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorUnknown:
      return "The GPU may be lost: check nvidia-smi and the kernel log, and start again.";
    case cudaErrorNoKernelImageForDevice:
      return "Build with -Dgpu_archs set to this GPU's compute capability.";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
      return "A kernel accessed invalid memory, or the GPU is lost: check nvidia-smi and the kernel log, run "
             "scripts/gpu_check.sh --stage sanitize, and report it with the run file.";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureImplicit:
      return "A work used a call that a graph cannot record: report it with the run file.";
    default:
      return "Check nvidia-smi and the kernel log; if the GPU is healthy, report it with the run file.";
  }
}

// After the first failure every call fails, and messages of destructors would only repeat it.
std::atomic<bool> has_thrown{false};

std::string sentence(cudaError_t result, const char* expression, const char* file, int line) {
  return fmt::format("[cuda] {} at {}:{} failed: {} ({}, {}). {}", expression, file, line, cudaGetErrorString(result),
                     cudaGetErrorName(result), static_cast<int>(result), what_to_do(result));
}

}  // namespace

void check(cudaError_t result, const char* expression, const char* file, int line) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();
  has_thrown = true;
  throw ResourceError("{}", sentence(result, expression, file, line));
}

void fail(cudaError_t result, const std::string& what) {
  (void)cudaGetLastError();
  has_thrown = true;
  throw ResourceError("[cuda] {} failed: {} ({}, {}). {}", what, cudaGetErrorString(result), cudaGetErrorName(result),
                      static_cast<int>(result), what_to_do(result));
}

void check_quietly(cudaError_t result, const char* expression, const char* file, int line) noexcept {
  if (result == cudaSuccess || result == cudaErrorCudartUnloading || result == cudaErrorContextIsDestroyed ||
      has_thrown)
    return;
  try {
    (void)cudaGetLastError();
    log_warn("{}", sentence(result, expression, file, line));
  } catch (const std::exception&) {
    // A destructor cannot report an error.
  }
}

bool is_ready(cudaError_t result, const char* expression, const char* file, int line) {
  if (result == cudaSuccess) return true;
  if (result != cudaErrorNotReady) check(result, expression, file, line);
  (void)cudaGetLastError();
  return false;
}

}  // namespace slipstream::cuda
