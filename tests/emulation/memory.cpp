// SPDX-License-Identifier: Apache-2.0
// Memory of the emulated device between protected pages, and the function that the compiler calls before every access.

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "tests/emulation/emulator.h"

namespace slipstream::emulation {
namespace {

/// All memory is in one range of addresses, which distinguishes it from stacks and shared memory; allocated from the
/// front, and from the beginning again when all is freed.
struct Memories {
  std::mutex mutex;
  size_t used_bytes = 0;
  std::vector<const DeviceMemory*> all;  // by address
  // Of the running kernel: the memory at its launch, and the memory that it accessed last.
  std::vector<const DeviceMemory*> seen;
  const DeviceMemory* recent = nullptr;
};
Memories& memories = *new Memories;  // streams may free memory at exit
constexpr size_t kRangeBytes = size_t{1} << 40;
unsigned char* const range = [] {
  void* all = mmap(nullptr, kRangeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) throw Error(source::kEmulator, "[emulation] no addresses for the memory of the device.");
  return static_cast<unsigned char*>(all);
}();

}  // namespace

void see_memories() {
  const std::lock_guard lock(memories.mutex);
  memories.seen = memories.all;
  memories.recent = nullptr;
}

const DeviceMemory* memory_around(const void* address) {
  for (const DeviceMemory* memory : memories.seen)
    if (memory->protects(address)) return memory;
  return nullptr;
}

std::string describe(const void* address) {
  if (const DeviceMemory* memory = memory_around(address))
    return fmt::format("access out of bounds, at byte {} of '{}', which has {}",
                       static_cast<const unsigned char*>(address) - memory->data(), memory->name(),
                       memory->size_bytes());
  return fmt::format("access to {}, which is no memory of the device", address);
}

void access(const void* p, size_t size_bytes) {
  const size_t at = static_cast<size_t>(static_cast<const unsigned char*>(p) - range);
  if (at >= kRangeBytes || !in_kernel()) return;
  require_earlier_kernels();
  const DeviceMemory*& recent = memories.recent;
  if (recent && recent->contains(p, size_bytes)) return;
  const auto next = std::upper_bound(memories.seen.begin(), memories.seen.end(), p,
                                     [](const void* q, const DeviceMemory* memory) { return q < memory->data(); });
  recent = next == memories.seen.begin() ? nullptr : *(next - 1);
  if (recent && recent->contains(p, size_bytes)) return;
  const bool begins_inside = recent && recent->contains(p, 0);
  fail_quietly(source::kOutOfBounds, describe(begins_inside ? recent->data() + recent->size_bytes() : p));
}

DeviceMemory::DeviceMemory(size_t size_bytes, std::string name, size_t shift_bytes)
    : name_(std::move(name)), size_bytes_(size_bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t used = (shift_bytes + size_bytes + 15) / 16 * 16;
  pages_bytes_ = (used + page - 1) / page * page + 2 * page;
  const std::lock_guard lock(memories.mutex);
  pages_ = range + memories.used_bytes;
  if (pages_bytes_ > kRangeBytes - memories.used_bytes ||
      mprotect(pages_ + page, pages_bytes_ - 2 * page, PROT_READ | PROT_WRITE) != 0)
    throw Error(source::kEmulator, "[emulation] no memory left for " + name_ + ".");
  std::memset(pages_ + page, 0xff, pages_bytes_ - 2 * page);
  data_ = pages_ + pages_bytes_ - page - used + shift_bytes;
  memories.used_bytes += pages_bytes_;
  memories.all.push_back(this);
}

DeviceMemory::~DeviceMemory() {
  const std::lock_guard lock(memories.mutex);
  std::erase(memories.all, this);
  if (memories.all.empty()) memories.used_bytes = 0;
  mmap(pages_, pages_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

bool DeviceMemory::intact() const {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto ones = [](unsigned char byte) { return byte == 0xff; };
  return std::all_of(pages_ + page, data_, ones) &&
         std::all_of(data_ + size_bytes_, pages_ + pages_bytes_ - page, ones);
}

bool DeviceMemory::protects(const void* address) const { return address >= pages_ && address < pages_ + pages_bytes_; }

}  // namespace slipstream::emulation

// The calls of accesses_are_calls, by the compiler's names.
extern "C" {
#define SLIP_ACCESSES_OF(size)                                                                \
  void __asan_load##size##_noabort(const void* p) { slipstream::emulation::access(p, size); } \
  void __asan_store##size##_noabort(const void* p) { slipstream::emulation::access(p, size); }
SLIP_ACCESSES_OF(1)
SLIP_ACCESSES_OF(2)
SLIP_ACCESSES_OF(4)
SLIP_ACCESSES_OF(8)
SLIP_ACCESSES_OF(16)
#undef SLIP_ACCESSES_OF
void __asan_loadN_noabort(const void* p, size_t size_bytes) { slipstream::emulation::access(p, size_bytes); }
void __asan_storeN_noabort(const void* p, size_t size_bytes) { slipstream::emulation::access(p, size_bytes); }
void __asan_handle_no_return() {}
void __asan_before_dynamic_init(const char*) {}
void __asan_after_dynamic_init() {}
}
