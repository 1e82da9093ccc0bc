// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cuda device: one GPU of this process. Its streams are CUDA streams. Its memory is one block per arena, from
// cudaMalloc or from a library.

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "engine/device/cuda/cuda_memory.h"
#include "engine/device/cuda/cuda_stream.h"
#include "engine/device/device.h"

namespace slipstream::cuda {

/// Copies between pageable host memory and the device through two pinned pieces on a separate stream.
class HostCopies {
 public:
  HostCopies() = default;
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Blocks. The copy is not ordered with other streams: the caller first waits for the works that write `device`.
  void to_host(void* host, const std::byte* device, int64_t size_bytes);
  void from_host(std::byte* device, const void* host, int64_t size_bytes);

 private:
  struct Piece {
    std::byte* host = nullptr;  // pinned
    cudaEvent_t copied = nullptr;
  };
  void prepare();

  std::mutex mutex_;
  cudaStream_t stream_ = nullptr;
  std::array<Piece, 2> pieces_;
};

class CudaDevice final : public Device {
 public:
  /// Blocks while the GPU's context starts. Waits of the host sleep instead of spinning. Throws: ResourceError.
  explicit CudaDevice(int index, const CudaMemory& memory = {});

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override;
  std::unique_ptr<Event> make_event(uint64_t tag) override;
  std::unique_ptr<Allocation> allocate(int64_t size_bytes, const std::string& name) override;
  std::unique_ptr<Allocation> allocate_host(int64_t size_bytes, const std::string& name) override;
  std::shared_ptr<void> pin(std::byte* memory, int64_t size_bytes) override;
  std::unique_ptr<Graph> capture(Stream& origin, const std::function<void()>& issue, GraphSpans spans) override;
  void copy_to_host(void* host, const std::byte* device, int64_t size_bytes) override;
  void copy_from_host(std::byte* device, const void* host, int64_t size_bytes) override;
  int64_t now_ns() const override;
  int64_t allocation_count() const override { return allocations_.load(std::memory_order_relaxed); }
  int64_t host_wait_count() const override { return core_->host_waits.load(std::memory_order_relaxed); }
  void inject_delays(uint64_t seed, int64_t max_ns) override;

 private:
  std::shared_ptr<Core> core_;
  CudaMemory memory_;
  std::atomic<int64_t> allocations_{0};
  HostCopies copies_;
};

}  // namespace slipstream::cuda
