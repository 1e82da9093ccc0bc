// SPDX-License-Identifier: Apache-2.0
// Memory of the device and of the host: garbage when fresh, closed to the host if requested.

#include <cstdlib>

#include "tests/fake_cuda/machine.h"

using namespace slipstream::fake_cuda::detail;

namespace {

std::set<void*> pinned;  // pinned by cudaHostRegister; read under the lock

Op copy_op(void* to, const void* from, size_t bytes) {
  return [=] {
    const Touch touch;
    std::memcpy(to, from, bytes);
  };
}

/// Call it under the lock.
cudaError_t take(void** block, size_t size, int64_t taken_of_device, bool of_library) {
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureUnsupported);
  if (taken_of_device > current_settings.memory_bytes - taken_bytes) return leave(cudaErrorMemoryAllocation);
  // Memory is aligned as promised and no better, and is not zero.
  const size_t taken = (size + 8191) / 4096 * 4096;
  std::byte* memory = nullptr;
  {
    const Touch touch;
    memory =
        current_settings.guard_memory ? guarded.carve(taken) : static_cast<std::byte*>(std::aligned_alloc(4096, taken));
    std::memset(memory, 0xCD, size + 256);
  }
  close_when_idle();
  *block = memory + 256;
  blocks[*block] = {static_cast<int64_t>(size), taken_of_device, of_library};
  taken_bytes += taken_of_device;
  ++current_counts.blocks;
  return cudaSuccess;
}

/// Call it under the lock.
cudaError_t give_back(void* block, bool of_library) {
  const auto found = blocks.find(block);
  if (found == blocks.end() || found->second.of_library != of_library) return leave(cudaErrorInvalidValue);
  if (slipstream::fake_cuda::before_free()) slipstream::fake_cuda::before_free()(block, found->second.bytes);
  taken_bytes -= found->second.taken_of_device;
  blocks.erase(found);
  if (!current_settings.guard_memory) std::free(static_cast<std::byte*>(block) - 256);
  --current_counts.blocks;
  return cudaSuccess;
}

}  // namespace

cudaError_t slipstream::fake_cuda::take_of_driver(void** block, size_t bytes) {
  constexpr int64_t kPieceBytes = int64_t{2} << 20;
  FAKE_ENTER("cuMemCreate");
  return take(block, bytes, (static_cast<int64_t>(bytes) + kPieceBytes - 1) / kPieceBytes * kPieceBytes, true);
}
cudaError_t slipstream::fake_cuda::give_back_to_driver(void* block) {
  FAKE_ENTER("cuMemUnmap");
  if (!are_idle()) lost = cudaErrorIllegalAddress;
  return give_back(block, true);
}

extern "C" {

cudaError_t cudaMalloc(void** block, size_t size) {
  FAKE_ENTER("cudaMalloc");
  return take(block, size, static_cast<int64_t>(size), false);
}
cudaError_t cudaFree(void* block) {
  FAKE_ENTER("cudaFree");
  return block ? give_back(block, false) : cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  FAKE_ENTER("cudaMemGetInfo");
  *free = static_cast<size_t>(current_settings.memory_bytes - taken_bytes);
  *total = static_cast<size_t>(current_settings.memory_bytes);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** block, size_t size, unsigned int) {
  FAKE_ENTER("cudaHostAlloc");
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureUnsupported);
  *block = std::malloc(size);
  ++current_counts.pinned_blocks;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* block) {
  FAKE_ENTER("cudaFreeHost");
  std::free(block);
  --current_counts.pinned_blocks;
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t size, unsigned int) {
  FAKE_ENTER("cudaHostRegister");
  if (!memory || size == 0) return leave(cudaErrorInvalidValue);
  if (!pinned.insert(memory).second) return leave(cudaErrorHostMemoryAlreadyRegistered);
  ++current_counts.pinned_blocks;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  FAKE_ENTER("cudaHostUnregister");
  if (pinned.erase(memory) == 0) return leave(cudaErrorHostMemoryNotRegistered);
  --current_counts.pinned_blocks;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* block, int value, size_t bytes) {
  FAKE_ENTER("cudaMemset");
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureImplicit);
  {
    const Touch touch;
    std::memset(block, value, bytes);
  }
  close_when_idle();
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* block, int value, size_t bytes, cudaStream_t stream) {
  FAKE_ENTER("cudaMemsetAsync");
  return leave(push_when_free(lock, stream, [=] {
    const Touch touch;
    std::memset(block, value, bytes);
  }));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  FAKE_ENTER("cudaMemcpyAsync");
  return leave(push_when_free(lock, stream, copy_op(to, from, bytes)));
}

}  // extern "C"
