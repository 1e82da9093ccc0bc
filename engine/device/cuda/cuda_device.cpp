// SPDX-License-Identifier: Apache-2.0
// Memory, copies for set-up and saving, and the properties of the GPU.

#include "engine/device/cuda/cuda_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/units.h"
#include "engine/device/clock.h"
#include "engine/device/cuda/cuda_check.h"
#include "engine/device/cuda/cuda_choice.h"

namespace slipstream {
namespace cuda {
namespace {

constexpr int64_t kPageBytes = 4 * kKiB;
constexpr int64_t kPieceBytes = 4 * kMiB;

class CudaAllocation final : public Allocation {
 public:
  CudaAllocation(std::shared_ptr<Core> core, const CudaMemory& memory, int64_t size_bytes, const std::string& name)
      : core_(std::move(core)), memory_(memory), size_bytes_(size_bytes) {
    SLIP_ASSERT(size_bytes >= 0);
    core_->enter();
    // Large blocks are aligned to much more than a page anyway. The spare page is for small ones.
    const int64_t taken_bytes = round_up(std::max<int64_t>(size_bytes, 1), kPageBytes) + kPageBytes;
    take(taken_bytes, name);
    const auto address = reinterpret_cast<uintptr_t>(block_);
    data_ = static_cast<std::byte*>(block_) + (kPageBytes - static_cast<int64_t>(address % kPageBytes)) % kPageBytes;
    // This uses the default stream, for which other streams do not wait.
    SLIP_CUDA(cudaMemset(data_, 0, static_cast<size_t>(taken_bytes - kPageBytes)));
    SLIP_CUDA(cudaStreamSynchronize(nullptr));
  }
  ~CudaAllocation() override {
    if (memory_.take)
      give_back();
    else
      SLIP_CUDA_QUIETLY(cudaFree(block_));
  }
  CudaAllocation(const CudaAllocation&) = delete;
  CudaAllocation& operator=(const CudaAllocation&) = delete;

  std::byte* data() override { return data_; }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  void take(int64_t taken_bytes, const std::string& name) {
    std::string refusal;
    if (memory_.take) {
      refusal = memory_.take(&block_, static_cast<size_t>(taken_bytes));
      if (refusal.empty()) return;
    } else {
      const cudaError_t result = cudaMalloc(&block_, static_cast<size_t>(taken_bytes));
      if (result != cudaErrorMemoryAllocation) return SLIP_CUDA(result);
    }
    (void)cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    SLIP_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));  // throws if the GPU is lost
    const auto free = static_cast<int64_t>(free_bytes), total = static_cast<int64_t>(total_bytes);
    const int64_t need_bytes = refusal.empty() ? size_bytes_ : round_up(taken_bytes, memory_.piece_bytes);
    // A library reports the same error for every refusal of CUDA.
    if (!refusal.empty() && free >= need_bytes)
      throw ResourceError("[memory] {} needs {} on GPU {}, {} of {} are free, but {}.", name, format_bytes(need_bytes),
                          core_->index, format_bytes(free), format_bytes(total), refusal);
    throw ResourceError(
        "[memory] {} needs {} on GPU {}, but {} of {} are free. Use a smaller model, micro-batch or "
        "sequence, or more ranks.",
        name, format_bytes(need_bytes), core_->index, format_bytes(free), format_bytes(total));
  }

  void give_back() {
    // cudaFree waits for the device; a library's function may not.
    cudaError_t result = cudaSetDevice(core_->index);
    if (result == cudaSuccess) result = cudaDeviceSynchronize();
    check_quietly(result, "waiting for the device", __FILE__, __LINE__);
    if (result != cudaSuccess) return;  // the end of the process frees it
    if (const std::string refusal = memory_.give_back(block_); !refusal.empty()) log_warn("[memory] {}.", refusal);
  }

  std::shared_ptr<Core> core_;
  CudaMemory memory_;
  int64_t size_bytes_ = 0;
  void* block_ = nullptr;
  std::byte* data_ = nullptr;
};

/// Pinned memory of the host.
class CudaHostAllocation final : public Allocation {
 public:
  CudaHostAllocation(const Core& core, int64_t size_bytes) : size_bytes_(size_bytes) {
    core.enter();
    SLIP_CUDA(cudaHostAlloc(&data_, static_cast<size_t>(std::max<int64_t>(size_bytes, 1)), cudaHostAllocDefault));
    std::memset(data_, 0, static_cast<size_t>(size_bytes));
  }
  ~CudaHostAllocation() override { SLIP_CUDA_QUIETLY(cudaFreeHost(data_)); }
  CudaHostAllocation(const CudaHostAllocation&) = delete;
  CudaHostAllocation& operator=(const CudaHostAllocation&) = delete;

  std::byte* data() override { return static_cast<std::byte*>(data_); }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  int64_t size_bytes_ = 0;
  void* data_ = nullptr;
};

}  // namespace

HostCopies::~HostCopies() {
  for (const Piece& piece : pieces_) {
    if (piece.host) SLIP_CUDA_QUIETLY(cudaFreeHost(piece.host));
    if (piece.copied) SLIP_CUDA_QUIETLY(cudaEventDestroy(piece.copied));
  }
  if (stream_) SLIP_CUDA_QUIETLY(cudaStreamDestroy(stream_));
}

void HostCopies::prepare() {
  if (!stream_) SLIP_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (Piece& piece : pieces_) {
    void* host = nullptr;
    if (!piece.host) SLIP_CUDA(cudaHostAlloc(&host, static_cast<size_t>(kPieceBytes), cudaHostAllocDefault));
    if (host) piece.host = static_cast<std::byte*>(host);
    if (!piece.copied)
      SLIP_CUDA(cudaEventCreateWithFlags(&piece.copied, cudaEventBlockingSync | cudaEventDisableTiming));
  }
}

void HostCopies::to_host(void* host, const std::byte* device, int64_t size_bytes) {
  std::lock_guard lock(mutex_);
  prepare();
  // The host copies from one piece while the GPU fills the other.
  const int64_t pieces = (size_bytes + kPieceBytes - 1) / kPieceBytes;
  const auto piece_bytes = [&](int64_t p) {
    return static_cast<size_t>(std::min(kPieceBytes, size_bytes - p * kPieceBytes));
  };
  const auto request = [&](int64_t p) {
    const Piece& piece = pieces_[static_cast<size_t>(p % 2)];
    SLIP_CUDA(cudaMemcpyAsync(piece.host, device + p * kPieceBytes, piece_bytes(p), cudaMemcpyDeviceToHost, stream_));
    SLIP_CUDA(cudaEventRecord(piece.copied, stream_));
  };
  if (pieces > 0) request(0);
  for (int64_t p = 0; p < pieces; ++p) {
    if (p + 1 < pieces) request(p + 1);
    const Piece& piece = pieces_[static_cast<size_t>(p % 2)];
    SLIP_CUDA(cudaEventSynchronize(piece.copied));
    std::memcpy(static_cast<std::byte*>(host) + p * kPieceBytes, piece.host, piece_bytes(p));
  }
}

void HostCopies::from_host(std::byte* device, const void* host, int64_t size_bytes) {
  std::lock_guard lock(mutex_);
  prepare();
  int64_t p = 0;
  for (int64_t begin = 0; begin < size_bytes; begin += kPieceBytes, ++p) {
    const Piece& piece = pieces_[static_cast<size_t>(p % 2)];
    const auto bytes = static_cast<size_t>(std::min(kPieceBytes, size_bytes - begin));
    SLIP_CUDA(cudaEventSynchronize(piece.copied));  // returns at once if it was never recorded
    std::memcpy(piece.host, static_cast<const std::byte*>(host) + begin, bytes);
    SLIP_CUDA(cudaMemcpyAsync(device + begin, piece.host, bytes, cudaMemcpyHostToDevice, stream_));
    SLIP_CUDA(cudaEventRecord(piece.copied, stream_));
  }
  SLIP_CUDA(cudaStreamSynchronize(stream_));
}

/// Must be called before any other use of the GPU, because the flags apply to its whole context. They make waits of the
/// host sleep.
static void start(int index) {
  SLIP_CUDA(cudaInitDevice(index, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid));
}

CudaDevice::CudaDevice(int index, const CudaMemory& memory) : core_(std::make_shared<Core>(index)), memory_(memory) {
  start(index);
  core_->enter();
  core_->clock = std::make_unique<Clock>();
}

std::unique_ptr<Stream> CudaDevice::make_stream(const StreamOptions& options) {
  return std::make_unique<CudaStream>(core_, options);
}

std::unique_ptr<Event> CudaDevice::make_event(uint64_t tag) { return std::make_unique<CudaEvent>(core_, tag); }

std::unique_ptr<Allocation> CudaDevice::allocate(int64_t size_bytes, const std::string& name) {
  auto allocation = std::make_unique<CudaAllocation>(core_, memory_, size_bytes, name);
  ++allocations_;
  return allocation;
}

std::unique_ptr<Allocation> CudaDevice::allocate_host(int64_t size_bytes, const std::string&) {
  auto allocation = std::make_unique<CudaHostAllocation>(*core_, size_bytes);
  ++allocations_;
  return allocation;
}

std::shared_ptr<void> CudaDevice::pin(std::byte* memory, int64_t size_bytes) {
  core_->enter();
  SLIP_CUDA(cudaHostRegister(memory, static_cast<size_t>(size_bytes), cudaHostRegisterDefault));
  return {memory, [core = core_](void* pinned) {
            SLIP_CUDA_QUIETLY(cudaSetDevice(core->index));
            SLIP_CUDA_QUIETLY(cudaHostUnregister(pinned));
          }};
}

std::unique_ptr<Graph> CudaDevice::capture(Stream& origin, const std::function<void()>& issue, GraphSpans spans) {
  core_->enter();
  return std::make_unique<CudaGraph>(core_, static_cast<CudaStream&>(origin), issue, spans);
}

void CudaDevice::copy_to_host(void* host, const std::byte* device, int64_t size_bytes) {
  core_->enter();
  ++core_->host_waits;
  copies_.to_host(host, device, size_bytes);
}

void CudaDevice::copy_from_host(std::byte* device, const void* host, int64_t size_bytes) {
  core_->enter();
  ++core_->host_waits;
  copies_.from_host(device, host, size_bytes);
}

int64_t CudaDevice::now_ns() const { return monotonic_ns(); }

void CudaDevice::inject_delays(uint64_t seed, int64_t max_ns) {
  core_->delay_seed.store(seed, std::memory_order_relaxed);
  core_->delay_max_ns.store(max_ns, std::memory_order_release);
}

}  // namespace cuda

namespace {

/// Returns "13.0" for 13000.
std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string reason_for(cudaError_t result) {
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaGetLastError();
  if (driver == 0) return "this machine has no NVIDIA driver";
  if (result == cudaErrorInsufficientDriver)
    return fmt::format("the NVIDIA driver supports CUDA {}, but this build needs {}", version_text(driver),
                       version_text(runtime));
  if (result == cudaSuccess || result == cudaErrorNoDevice) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return visible ? fmt::format("no GPU is visible with CUDA_VISIBLE_DEVICES={}", visible) : "this machine has no GPU";
  }
  return fmt::format("CUDA cannot start: {} ({})", cudaGetErrorString(result), cudaGetErrorName(result));
}

}  // namespace

CudaDevices find_cuda_devices() {
  CudaDevices devices;
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  for (int i = 0; counted == cudaSuccess && i < count; ++i) {
    cudaDeviceProp properties{};
    const cudaError_t result = cudaGetDeviceProperties(&properties, i);
    if (result != cudaSuccess) return {.ids = {}, .reason = reason_for(result)};
    std::string id = "GPU-";
    for (char byte : properties.uuid.bytes) id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    devices.ids.push_back(std::move(id));
  }
  if (devices.ids.empty()) devices.reason = reason_for(counted);
  return devices;
}

CudaGpu describe_cuda_device(int index) {
  cuda::start(index);
  SLIP_CUDA(cudaSetDevice(index));
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    SLIP_CUDA(cudaDeviceGetAttribute(&value, which, index));
    return int64_t{value};
  };
  cudaDeviceProp properties{};
  SLIP_CUDA(cudaGetDeviceProperties(&properties, index));
  size_t free_bytes = 0, total_bytes = 0;
  SLIP_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  int driver = 0;
  SLIP_CUDA(cudaDriverGetVersion(&driver));
  return {.name = properties.name,
          .capability = properties.major * 10 + properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .clock_khz = attribute(cudaDevAttrClockRate),
          // Memory makes two transfers per clock, and each line carries one bit.
          .bytes_per_second =
              attribute(cudaDevAttrMemoryClockRate) * 1000 * 2 * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8,
          .memory_bytes = static_cast<int64_t>(total_bytes),
          .free_bytes = static_cast<int64_t>(free_bytes),
          .driver = driver};
}

std::unique_ptr<Device> make_cuda_device(int index) { return make_cuda_device(index, {}); }
std::unique_ptr<Device> make_cuda_device(int index, const CudaMemory& memory) {
  return std::make_unique<cuda::CudaDevice>(index, memory);
}

}  // namespace slipstream
