// SPDX-License-Identifier: Apache-2.0
// Stands in for the emulator where its tests run on a card: device memory is managed memory between guard bytes, so that the
// same tests read it, and nothing checks accesses but compute-sanitizer.

#include "tests/gpu/cuda/card.h"

#include <algorithm>

#include "engine/device/cuda/cuda_check.h"
#include "tests/emulation/on_device.h"

namespace slipstream::emulation {
namespace {

constexpr size_t kGuardBytes = 256;

const bool has_card = [] {
  test::require_card();
  test::before_the_host_looks = [] { SLIP_CUDA(cudaStreamSynchronize(cudaStreamLegacy)); };
  return true;
}();

}  // namespace

DeviceMemory::DeviceMemory(size_t size_bytes, std::string name) : name_(std::move(name)), size_bytes_(size_bytes) {
  pages_bytes_ = kGuardBytes + (size_bytes + 15) / 16 * 16 + kGuardBytes;
  void* pages = nullptr;
  SLIP_CUDA(cudaMallocManaged(&pages, pages_bytes_, cudaMemAttachGlobal));
  pages_ = static_cast<unsigned char*>(pages);
  std::fill_n(pages_, pages_bytes_, static_cast<unsigned char>(0xff));
  data_ = pages_ + kGuardBytes;
}

DeviceMemory::~DeviceMemory() {
  SLIP_CUDA_QUIETLY(cudaStreamSynchronize(cudaStreamLegacy));
  SLIP_CUDA_QUIETLY(cudaFree(pages_));
}

bool DeviceMemory::intact() const {
  SLIP_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
  const auto ones = [](unsigned char byte) { return byte == 0xff; };
  return std::all_of(pages_, data_, ones) && std::all_of(data_ + size_bytes_, pages_ + pages_bytes_, ones);
}

bool DeviceMemory::protects(const void*) const { return false; }

void set_descending(bool) {}  // the card has its own order

}  // namespace slipstream::emulation
