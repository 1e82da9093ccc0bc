// SPDX-License-Identifier: Apache-2.0
// The shadow of shared memory, which has the writer and the last readers of every granule, and the copies in flight.

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/emulation/async_machine.h"

namespace slipstream::emulation {
namespace {

constexpr size_t kGranuleBytes = 2;  // of the shadow: our smallest element
// Of shared memory without a request, and of dynamic memory for which launch() makes none.
constexpr size_t kDefaultBytes = 48 * 1024, kUnrequestedBytes = 32 * 1024;

/// Are the earlier touch and an access by the running thread now ordered by a barrier?
inline bool ordered(const Touch& earlier) {
  if (!earlier.of_a_thread() || earlier.thread() == m.current) return true;
  if (earlier.when() < m.block_began) return true;
  if (m.clocked) return static_cast<int32_t>(earlier.when()) <= a.threads[m.current].known[earlier.thread()];
  return earlier.when() < m.block_ordered_at ||
         (earlier.thread() / 32 == m.current / 32 && earlier.when() < m.warps[m.current / 32].ordered_at);
}

inline Touch touch_now(uint16_t site, bool in_flight = false) {
  return {m.current, site, m.clocked ? static_cast<uint32_t>(a.step(m.current)) : m.time, in_flight};
}

[[noreturn]] void fail_race(const Source& source, const char* now, const Touch& earlier, const char* before,
                            const char* why, const Region& region, size_t offset, const std::source_location& at) {
  const std::source_location& site = m.sites.at[earlier.site()];
  fail(source, fmt::format("race on shared memory at {}: {} byte {} of an array of {} bytes, which {} {} at {}{}",
                           file_of(at), now, offset, region.size_bytes, place_of(earlier.thread()), before,
                           earlier.site() == 0 ? "an unknown line" : file_of(site), why));
}
inline void require_ordered(const Touch& earlier, const char* before, const char* now, const Region& region,
                            size_t offset, const std::source_location& at) {
  if (!ordered(earlier))
    fail_race(source::kMemoryModel, now, earlier, before, " with no barrier between", region, offset, at);
}
inline bool written(const Granule& g) { return g.writer.when() >= m.block_began; }
inline void require_landed(const Granule& g, const char* now, const Region& region, size_t offset,
                           const std::source_location& at) {
  if (g.writer.in_flight() && written(g))
    fail_race(source::kCopyAsyncWait, now, g.writer, "began to copy to", " without a wait since", region, offset, at);
}
void require_free(const Granule& g, const char* now, const Region& region, size_t offset,
                  const std::source_location& at) {
  require_landed(g, now, region, offset, at);
  require_ordered(g.writer, "wrote", now, region, offset, at);
  for (const Touch* reader : {&g.last_reader, &g.other_reader, &g.other_warp_reader})
    require_ordered(*reader, "read", now, region, offset, at);
}

/// Have two granules the same past? Checks of an access then end the same.
inline bool equal(const Granule& a, const Granule& b) {
  std::array<uint64_t, 4> x, y;
  std::memcpy(x.data(), &a, sizeof a);
  std::memcpy(y.data(), &b, sizeof b);
  return ((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3])) == 0;
}

/// Calls check(region, granule, offset), which changes the granule, for those in [p, p + size_bytes); a granule equal
/// to the one before it becomes as that one has become.
template <typename Check>
void visit(const void* p, size_t size_bytes, const std::source_location& at, const Check& check) {
  const auto* address = static_cast<const unsigned char*>(p);
  for (const Region& region : m.regions) {
    if (address < region.base || address >= region.base + region.size_bytes) continue;
    const size_t offset = static_cast<size_t>(address - region.base);
    if (offset + size_bytes > region.size_bytes) break;
    Granule* const shadow = m.shadow.data() + region.first_granule;
    const size_t first = offset / kGranuleBytes, end = (offset + size_bytes + kGranuleBytes - 1) / kGranuleBytes;
    Granule before = shadow[first];
    check(region, shadow[first], first * kGranuleBytes);
    for (size_t g = first + 1; g < end; ++g) {
      if (equal(shadow[g], before)) {
        shadow[g] = shadow[g - 1];
        continue;
      }
      before = shadow[g];
      check(region, shadow[g], g * kGranuleBytes);
    }
    return;
  }
  fail(source::kOutOfBounds, fmt::format("access out of bounds of shared memory at {}", file_of(at)));
}

/// The bytes are there for this thread, and after a barrier for others.
void land(const Copy& copy) {
  const std::source_location& at = m.sites.at[copy.site];
  visit(copy.to, 16, at, [&](const Region&, Granule& g, size_t) { g.writer = touch_now(copy.site); });
}

}  // namespace

void read_now(const void* p, size_t size_bytes, const std::source_location& at) {
  if (m.clocked) check_generic(p, size_bytes, false, at);
  const Touch now = touch_now(m.sites.of(at));
  // With clocks, warpgroups wait for each other: the last reader of another warpgroup is kept.
  const int kept_apart = m.clocked ? 7 : 5;  // bits of the threads of a warpgroup, of a warp
  visit(p, size_bytes, at, [&](const Region& region, Granule& g, size_t offset) {
    if (!written(g))
      fail(source::kSharedVariables,
           fmt::format("read of shared memory that no one wrote at {}: byte {} of an array of {} bytes", file_of(at),
                       offset, region.size_bytes));
    require_landed(g, "reads", region, offset, at);
    require_ordered(g.writer, "wrote", "reads", region, offset, at);
    if (g.last_reader.thread() != m.current) {
      g.other_reader = g.last_reader;
      if (g.last_reader.thread() >> kept_apart != m.current >> kept_apart) g.other_warp_reader = g.last_reader;
    }
    g.last_reader = now;
  });
}
void write_now(const void* p, size_t size_bytes, const std::source_location& at, bool in_flight) {
  if (m.clocked) check_generic(p, size_bytes, true, at);
  const Touch now = touch_now(m.sites.of(at), in_flight);
  visit(p, size_bytes, at, [&](const Region& region, Granule& g, size_t offset) {
    require_free(g, in_flight ? "begins to copy to" : "writes", region, offset, at);
    g.writer = now;
  });
}
void check_granules(const unsigned char* p, const Asynchronous& access) {
  const auto known = [&](const Touch& earlier) {
    return !earlier.of_a_thread() || earlier.when() < m.block_began ||
           static_cast<int32_t>(earlier.when()) <= access.by.known[earlier.thread()];
  };
  visit(p, 16, access.at, [&](const Region& region, Granule& g, size_t offset) {
    if (!written(g)) {
      if (!access.write)
        fail(source::kSharedVariables,
             fmt::format("{} shared memory that no one wrote at {}: {}", access.now, file_of(access.at), offset_of(p)));
    } else {
      require_landed(g, access.now, region, offset, access.at);
      if (!known(g.writer))
        fail_race(source::kMemoryModel, access.now, g.writer, "wrote", " with no barrier between", region, offset,
                  access.at);
      if (g.writer.of_a_thread() && static_cast<int32_t>(g.writer.when()) > access.by.fenced[g.writer.thread()])
        fail_race(source::kAsyncProxy, access.now, g.writer, "wrote", " without a fence_async since", region, offset,
                  access.at);
    }
    if (!access.write) return;
    for (const Touch* reader : {&g.last_reader, &g.other_reader, &g.other_warp_reader})
      if (!known(*reader))
        fail_race(source::kMemoryModel, access.now, *reader, "read", " with no barrier between", region, offset,
                  access.at);
    g = {.writer = Touch::of_no_thread(m.block_began)};
  });
}

static uint32_t base_address = 1024;
uint32_t dynamic_base() { return base_address; }
void set_dynamic_base(uint32_t address) { base_address = address; }

void require_aligned_1024(const void* shared, const std::source_location& at) {
  if (shared_address(shared) % 1024 != 0)
    fail(source::kHopper,
         fmt::format("trap at {}: dynamic shared memory begins at address {}, not at a multiple of 1024", file_of(at),
                     shared_address(shared)));
}

void begin_shared() {
  m.regions.clear();
  m.shadow_used = 0;
  if (std::exchange(m.clocked, false)) pass_clocks();
  if (m.time > UINT32_MAX / 4) {
    std::fill(m.shadow.begin(), m.shadow.end(), Granule{});
    m.time = 0;
  }
  m.block_began = m.block_ordered_at = ++m.time;
}

void wait_now(Fiber& fiber, size_t pending) {
  fiber.landed.clear();
  std::erase_if(fiber.copies, [&](const Copy& copy) {
    if (copy.group + pending >= fiber.committed) return false;
    land(copy);
    if (copy.valid)
      std::memcpy(copy.to, copy.from, 16);
    else
      std::memset(copy.to, 0, 16);
    fiber.landed.push_back(copy);
    return true;
  });
  if (!fiber.landed.empty()) fiber.last.kind = Access::Kind::landing;
}

void repeat(const Fiber& fiber, const Access& last) {
  if (last.kind == Access::Kind::landing)
    for (const Copy& copy : fiber.landed) land(copy);
  else if (last.kind == Access::Kind::init)
    initialise_again();
  else if (last.kind == Access::Kind::read)
    read_now(last.p, last.size_bytes, last.at);
  else if (last.kind == Access::Kind::write)
    write_now(last.p, last.size_bytes, last.at);
}

void declare_shared(void* base, size_t size_bytes) {
  for (const Region& region : m.regions)
    if (region.base == base) return;
  std::memset(base, 0xff, size_bytes);
  m.regions.push_back({static_cast<unsigned char*>(base), size_bytes, m.shadow_used});
  m.shadow_used += (size_bytes + kGranuleBytes - 1) / kGranuleBytes;
  if (m.shadow.size() < m.shadow_used) m.shadow.resize(m.shadow_used);
  size_t all = 0;
  for (const Region& region : m.regions) all += region.size_bytes;
  if (all > shared_memory_bytes())
    fail(source::kCapabilities, fmt::format("{} bytes of static and dynamic shared memory, a block has at most {}", all,
                                            shared_memory_bytes()));
  if (m.dynamic_bytes <= kUnrequestedBytes && all > kDefaultBytes)
    fail(source::kLaunch, fmt::format("{} bytes of static and dynamic shared memory, of which launch() requests more "
                                      "than {} only for more than {} dynamic ones",
                                      all, kDefaultBytes, kUnrequestedBytes));
}

bool is_shared(const void* p) {
  const auto* address = static_cast<const unsigned char*>(p);
  return std::any_of(m.regions.begin(), m.regions.end(),
                     [&](const Region& r) { return address >= r.base && address < r.base + r.size_bytes; });
}

void shared_read(const void* p, size_t size_bytes, const std::source_location& at) {
  Fiber& fiber = m.fibers[m.current];
  before_access(fiber);
  read_now(p, size_bytes, at);
  fiber.last = {Access::Kind::read, p, size_bytes, at};
}

void shared_write(const void* p, size_t size_bytes, const std::source_location& at) {
  Fiber& fiber = m.fibers[m.current];
  before_access(fiber);
  write_now(p, size_bytes, at);
  fiber.last = {Access::Kind::write, p, size_bytes, at};
}

void copy_async(void* to, const void* from, bool valid, const std::source_location& at) {
  if (!is_shared(to))
    fail(source::kCopyAsync, fmt::format("cp.async at {} to an address that is not shared memory", file_of(at)));
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0)
    fail(source::kCopyAsync, fmt::format("cp.async at {} to an address that is not a multiple of 16", file_of(at)));
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail(source::kCopyAsync, fmt::format("cp.async at {} from an address that is not a multiple of 16", file_of(at)));
  if (valid) access(from, 16);
  Fiber& fiber = m.fibers[m.current];
  before_access(fiber);
  write_now(to, 16, at, true);
  fiber.last = {};
  fiber.copies.push_back({static_cast<unsigned char*>(to), from, valid, m.sites.of(at), fiber.committed});
}

void vector_access(const void* p, size_t size_bytes, bool write, const std::source_location& at) {
  if (reinterpret_cast<uintptr_t>(p) % size_bytes != 0)
    fail(source::kAlignment, fmt::format("misaligned access of {} bytes at {}: the address is {} beyond a multiple",
                                         size_bytes, file_of(at), reinterpret_cast<uintptr_t>(p) % size_bytes));
  if (!is_shared(p)) {
    require_earlier_kernels();
    if (m.clocked) check_global(p, size_bytes, write, at);
    return;
  }
  write ? shared_write(p, size_bytes, at) : shared_read(p, size_bytes, at);
}

}  // namespace slipstream::emulation
