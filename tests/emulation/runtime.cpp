// SPDX-License-Identifier: Apache-2.0
// Memory, events and copies of the emulated device, for host code: allocation and virtual time.

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/emulation/cuda_runtime.h"

struct EmulatedEvent {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t ns = 0;
  uint64_t asked = 0, done = 0;
};

namespace slipstream::emulation {
namespace {

std::atomic<int64_t> virtual_ns{0};
std::mutex mutex;
std::map<void*, std::unique_ptr<DeviceMemory>>& blocks() {
  static auto* all = new std::map<void*, std::unique_ptr<DeviceMemory>>;  // streams may free memory at exit
  return *all;
}

}  // namespace

void elapse(int64_t ns) { virtual_ns += ns; }
int64_t elapsed_ns() { return virtual_ns; }

}  // namespace slipstream::emulation

using namespace slipstream::emulation;

const char* cudaGetErrorString(cudaError_t) { return "an error of the emulation"; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::string("Emulated card").copy(properties->name, sizeof properties->name - 1);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** block, size_t size_bytes) {
  auto memory = std::make_unique<DeviceMemory>(size_bytes, "a block of cudaMalloc");
  const std::lock_guard lock(mutex);
  *block = memory->data();
  blocks()[*block] = std::move(memory);
  return cudaSuccess;
}
cudaError_t cudaFree(void* block) {
  slipstream::emulation::wait_for_streams();
  const std::lock_guard lock(mutex);
  blocks().erase(block);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind, cudaStream_t stream) {
  enqueue(stream, [=] { std::memcpy(to, from, size_bytes); });
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  {
    const std::lock_guard lock(event->mutex);
    ++event->asked;
  }
  enqueue(stream, [event] {
    const std::lock_guard lock(event->mutex);
    event->ns = elapsed_ns();
    ++event->done;
    event->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::unique_lock lock(event->mutex);
  event->changed.wait(lock, [&] { return event->done == event->asked; });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = static_cast<float>(static_cast<double>(end->ns - begin->ns) * 1e-6);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  EmulatedEvent event;
  cudaEventRecord(&event, stream);
  return cudaEventSynchronize(&event);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool found = std::string(name) == "cuTensorMapEncodeTiled" && version >= 12000;
  *function = found ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
  *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
