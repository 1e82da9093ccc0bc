// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory source for the arenas of a cuda device.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/device/device.h"

namespace slipstream {

/// A library's own memory on the current GPU. A block is given back only after its last use.
struct CudaMemory {
  /// Sets `block` to at least `size_bytes`. Returns an empty string, or the reason of a failure without a full stop.
  std::string (*take)(void** block, size_t size_bytes) = nullptr;  // null: cudaMalloc and cudaFree
  /// Returns the reason if it fails, and otherwise an empty string.
  std::string (*give_back)(void* block) = nullptr;
  int64_t piece_bytes = 1;  // sizes are multiples of this
};

/// Makes the same device as make_cuda_device() without `memory`, but Device::allocate uses `memory`.
std::unique_ptr<Device> make_cuda_device(int index, const CudaMemory& memory);

}  // namespace slipstream
