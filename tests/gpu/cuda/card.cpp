// SPDX-License-Identifier: Apache-2.0
// Replaces the emulator when its tests run on a GPU: device memory between guard bytes, which the host reads and writes
// by copies; only compute-sanitizer checks accesses.

#include "tests/gpu/cuda/card.h"

#include <algorithm>
#include <vector>

#include "engine/device/cuda/cuda_check.h"
#include "tests/kernels/common/backend.h"

namespace slipstream::test {

const Backend backend = require_card() ? Backend::gpu : Backend::emulated;

// cudaMemcpy waits for the kernels before it: the tests launch on the default stream.
void read_device(void* host, const void* device, size_t size_bytes) {
  SLIP_CUDA(cudaMemcpy(host, device, size_bytes, cudaMemcpyDeviceToHost));
}
void write_device(void* device, const void* host, size_t size_bytes) {
  SLIP_CUDA(cudaMemcpy(device, host, size_bytes, cudaMemcpyHostToDevice));
}

LaunchContext a_context() {
  LaunchContext context;
  context.kind = DeviceKind::cuda;
  return context;
}

void for_machines(const std::function<void(LaunchContext&)>& body) {
  // Twice: the order of the threads differs from run to run.
  for (int run : {1, 2}) {
    INFO("run " << run);
    LaunchContext context = a_context();
    body(context);
  }
}

int machine_set() { return 0; }

}  // namespace slipstream::test

namespace slipstream::emulation {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kOnes = 0xff;

}  // namespace

DeviceMemory::DeviceMemory(size_t size_bytes, std::string name, size_t shift_bytes)
    : name_(std::move(name)), size_bytes_(size_bytes) {
  pages_bytes_ = kGuardBytes + (shift_bytes + size_bytes + 15) / 16 * 16 + kGuardBytes;
  void* pages = nullptr;
  SLIP_CUDA(cudaMalloc(&pages, pages_bytes_));
  pages_ = static_cast<unsigned char*>(pages);
  SLIP_CUDA(cudaMemset(pages_, kOnes, pages_bytes_));
  data_ = pages_ + kGuardBytes + shift_bytes;
}

DeviceMemory::~DeviceMemory() { SLIP_CUDA_QUIETLY(cudaFree(pages_)); }

bool DeviceMemory::intact() const {
  std::vector<unsigned char> bytes(pages_bytes_);
  SLIP_CUDA(cudaMemcpy(bytes.data(), pages_, bytes.size(), cudaMemcpyDeviceToHost));
  const auto ones = [](unsigned char byte) { return byte == kOnes; };
  const auto begin = bytes.begin() + (data_ - pages_), end = begin + static_cast<std::ptrdiff_t>(size_bytes_);
  return std::all_of(bytes.begin(), begin, ones) && std::all_of(end, bytes.end(), ones);
}

bool DeviceMemory::protects(const void*) const { return false; }

// The GPU has its own order and memory, and launches are not counted: tests that use these check `backend` first.
void set_descending(bool) {}
void set_compute_capability(int) {}
void set_compiled_registers(int) {}
int64_t launches() { return 0; }

}  // namespace slipstream::emulation
