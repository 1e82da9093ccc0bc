// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a cuda device takes the memory of its arenas from.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/device/device.h"

namespace slipstream {

/// A library's own memory of the GPU that is current. Nobody gives back what anything still uses.
struct CudaMemory {
  /// Sets `block` to at least `size_bytes`; else returns why not, without a full stop.
  std::string (*take)(void** block, size_t size_bytes) = nullptr;  // null: cudaMalloc and cudaFree
  /// Returns why it could not; else nothing.
  std::string (*give_back)(void* block) = nullptr;
  int64_t piece_bytes = 1;  // what is taken is a multiple of it
};

/// As make_cuda_device without `memory`, with Device::allocate out of it.
std::unique_ptr<Device> make_cuda_device(int index, const CudaMemory& memory);

}  // namespace slipstream
