// SPDX-License-Identifier: Apache-2.0
// Settings, errors and devices.

#include <cstdio>
#include <exception>

#include "tests/fake_cuda/machine.h"

using namespace slipstream::fake_cuda::detail;

namespace slipstream::fake_cuda {

using namespace detail;

void reset() {
  std::lock_guard lock(mutex);
  current_settings = {};
  current_counts.host_waits = current_counts.records = current_counts.waits = 0;
  failures.clear();
  last_error = lost = cudaSuccess;
  commands = 0;
  clock_origin_ns = slipstream::monotonic_ns();
}
Settings& settings() { return current_settings; }
Counts counts() {
  std::lock_guard lock(mutex);
  return current_counts;
}
/// Enqueues `command` as a kernel.
static Op kernel(std::function<void()> command) {
  return [command = std::move(command)] {
    if (lost != cudaSuccess) return;
    if (commands++ >= current_settings.lost_after) {
      lost = cudaErrorDevicesUnavailable;
      return;
    }
    try {
      const Touch touch;
      command();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      lost = cudaErrorLaunchFailure;
    }
  };
}
cudaError_t enqueue(cudaStream_t stream, std::function<void()> command) {
  std::unique_lock lock(mutex);
  if (lost != cudaSuccess) return leave(lost);
  return leave(push_when_free(lock, stream, kernel(std::move(command))));
}
cudaError_t enqueue_from_elsewhere(cudaStream_t stream, std::function<void()> command) {
  const std::lock_guard lock(mutex);
  if (lost != cudaSuccess) return leave(lost);
  return leave(push(stream, kernel(std::move(command))));
}
int priority_now() { return running_priority; }
void enqueue_always(cudaStream_t stream, std::function<void()> command) {
  const std::lock_guard lock(mutex);
  push(stream, std::move(command));
}
std::function<void(const void*, int64_t)>& before_free() {
  static std::function<void(const void*, int64_t)> hook;
  return hook;
}
void fail_next(const std::string& function, cudaError_t error) {
  std::lock_guard lock(mutex);
  failures[function] = error;
}

}  // namespace slipstream::fake_cuda

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory"
         : error == cudaErrorNotReady       ? "not ready"
                                            : "an error of the fake";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfTheFake";
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = current_settings.driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = current_settings.runtime;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  FAKE_ENTER("cudaGetDeviceCount");
  *count = 0;
  if (current_settings.driver < current_settings.runtime) return leave(cudaErrorInsufficientDriver);
  if (current_settings.devices == 0) return leave(cudaErrorNoDevice);
  *count = current_settings.devices;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  FAKE_ENTER("cudaGetDeviceProperties");
  if (device < 0 || device >= current_settings.devices) return leave(cudaErrorInvalidDevice);
  *properties = {};
  properties->uuid.bytes[15] = static_cast<char>(device + 1);
  std::string("Fake GPU").copy(properties->name, sizeof properties->name - 1);
  properties->major = current_settings.capability / 10;
  properties->minor = current_settings.capability % 10;
  properties->multiProcessorCount = 2;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  FAKE_ENTER("cudaDeviceGetAttribute");
  if (device < 0 || device >= current_settings.devices) return leave(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrGlobalMemoryBusWidth     ? 512
           : attribute == cudaDevAttrComputeCapabilityMajor ? current_settings.capability / 10
           : attribute == cudaDevAttrComputeCapabilityMinor ? current_settings.capability % 10
                                                            : 1'000'000;
  return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) {
  FAKE_ENTER("cudaInitDevice");
  return leave(device >= 0 && device < current_settings.devices ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaSetDevice(int device) {
  FAKE_ENTER("cudaSetDevice");
  if (device < 0 || device >= current_settings.devices) return leave(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  FAKE_ENTER("cudaDeviceSynchronize");
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureUnsupported);
  ++current_counts.host_waits;
  changed.wait(lock, are_idle);
  return cudaSuccess;
}

}  // extern "C"
