// SPDX-License-Identifier: Apache-2.0
// Tests of ops on the CPU: every instruction set that the process may use, by 1, 2 and 3 threads, on memory between
// guard bytes. Replaces the emulator.

#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/base/parallel.h"
#include "tests/kernels/common/backend.h"

namespace slipstream::test {
namespace {

LaunchContext context_of(int threads) {
  static std::vector<std::unique_ptr<ThreadPool>> pools(4);
  auto& pool = pools[static_cast<size_t>(threads)];
  if (!pool) pool = std::make_unique<ThreadPool>(threads);
  LaunchContext context;
  context.pool = pool.get();
  return context;
}

}  // namespace

const Backend backend = Backend::cpu;

void read_device(void* host, const void* device, size_t size_bytes) { std::memcpy(host, device, size_bytes); }
void write_device(void* device, const void* host, size_t size_bytes) { std::memcpy(device, host, size_bytes); }

LaunchContext a_context() { return context_of(1); }

void for_machines(const std::function<void(LaunchContext&)>& body) {
  const struct Restore {
    kernels::Isa isa = kernels::isa();
    ~Restore() { kernels::use_isa(isa); }
  } best;
  for (kernels::Isa isa : {kernels::Isa::baseline, kernels::Isa::avx2, kernels::Isa::avx512}) {
    if (isa > best.isa) break;
    kernels::use_isa(isa);
    for (int threads : {1, 2, 3}) {
      INFO(kernels::name_of(isa) << ", threads: " << threads);
      LaunchContext context = context_of(threads);
      body(context);
    }
  }
}

int machine_set() { return static_cast<int>(kernels::isa()); }

}  // namespace slipstream::test

namespace slipstream::emulation {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kOnes = 0xff;

}  // namespace

DeviceMemory::DeviceMemory(size_t size_bytes, std::string name, size_t shift_bytes)
    : name_(std::move(name)), size_bytes_(size_bytes) {
  pages_bytes_ = kGuardBytes + shift_bytes + size_bytes + kGuardBytes;
  pages_ = static_cast<unsigned char*>(::operator new(pages_bytes_, std::align_val_t(64)));
  std::memset(pages_, kOnes, pages_bytes_);
  data_ = pages_ + kGuardBytes + shift_bytes;
}

DeviceMemory::~DeviceMemory() { ::operator delete(pages_, std::align_val_t(64)); }

bool DeviceMemory::intact() const {
  const auto ones = [](unsigned char byte) { return byte == kOnes; };
  return std::all_of(pages_, data_, ones) && std::all_of(data_ + size_bytes_, pages_ + pages_bytes_, ones);
}

bool DeviceMemory::protects(const void*) const { return false; }

// Of the emulated device alone.
void set_descending(bool) {}
void set_compute_capability(int) {}
void set_compiled_registers(int) {}
int64_t launches() { return 0; }

}  // namespace slipstream::emulation
