// SPDX-License-Identifier: Apache-2.0
// The cpu device: streams are threads, memory is anonymous pages, the clock is CLOCK_MONOTONIC.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/device/cpu/cpu_stream.h"

namespace slipstream {
namespace {

constexpr int64_t kPageBytes = 4 * kKiB;
constexpr int64_t kHugePageBytes = 2 * kMiB;

/// Returns the kernel's estimate of the memory that can be used without swapping.
int64_t available_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) return kib * kKiB;
    meminfo.ignore(256, '\n');
  }
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

class CpuAllocation final : public Allocation {
 public:
  CpuAllocation(int64_t size_bytes, const std::string& name) : size_bytes_(size_bytes) {
    SLIP_ASSERT(size_bytes >= 0);
    const int64_t available = available_bytes();
    mapped_bytes_ = round_up(std::max<int64_t>(size_bytes, 1), kPageBytes);
    void* pages = MAP_FAILED;
    if (mapped_bytes_ <= available)
      pages =
          mmap(nullptr, static_cast<size_t>(mapped_bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
      throw ResourceError(
          "[memory] {} needs {}, but {} are available. Use a smaller model, micro-batch or sequence, or "
          "more ranks.",
          name, format_bytes(size_bytes), format_bytes(available));
    data_ = static_cast<std::byte*>(pages);
    if (mapped_bytes_ >= 2 * kHugePageBytes) madvise(pages, static_cast<size_t>(mapped_bytes_), MADV_HUGEPAGE);
  }
  ~CpuAllocation() override { munmap(data_, static_cast<size_t>(mapped_bytes_)); }
  CpuAllocation(const CpuAllocation&) = delete;
  CpuAllocation& operator=(const CpuAllocation&) = delete;

  std::byte* data() override { return data_; }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  int64_t mapped_bytes_ = 0;
};

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    return std::make_unique<cpu::CpuStream>(core_, options);
  }
  std::unique_ptr<Event> make_event(uint64_t tag) override { return std::make_unique<cpu::CpuEvent>(core_, tag); }
  std::unique_ptr<Allocation> allocate(int64_t size_bytes, const std::string& name) override {
    auto allocation = std::make_unique<CpuAllocation>(size_bytes, name);
    ++allocations_;
    return allocation;
  }
  void copy_to_host(void* host, const std::byte* device, int64_t size_bytes) override {
    ++core_->host_waits;
    if (size_bytes > 0) std::memcpy(host, device, static_cast<size_t>(size_bytes));
  }
  void copy_from_host(std::byte* device, const void* host, int64_t size_bytes) override {
    ++core_->host_waits;
    if (size_bytes > 0) std::memcpy(device, host, static_cast<size_t>(size_bytes));
  }
  int64_t now_ns() const override { return monotonic_ns(); }
  int64_t allocation_count() const override { return allocations_.load(std::memory_order_relaxed); }
  int64_t host_wait_count() const override { return core_->host_waits.load(std::memory_order_relaxed); }
  void inject_delays(uint64_t seed, int64_t max_ns) override {
    core_->delay_seed.store(seed, std::memory_order_relaxed);
    core_->delay_max_ns.store(max_ns, std::memory_order_release);
  }

 private:
  std::shared_ptr<cpu::Core> core_ = std::make_shared<cpu::Core>();
  std::atomic<int64_t> allocations_{0};
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace slipstream
