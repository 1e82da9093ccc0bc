// SPDX-License-Identifier: Apache-2.0
// Global memory that a kernel's blocks hand to each other with store_release and wait_until.
//
// One block may do the work that many do on a card. Program order within the block orders nothing here: bytes that the
// kernel has written may be accessed again only by a thread that knows of a wait_until for a store_release that knew of
// the write. Barriers pass both kinds of knowledge on, as those of shared memory.

#include <fmt/core.h>

#include <unordered_map>

#include "tests/emulation/async_machine.h"

namespace slipstream::emulation {
namespace {

constexpr uintptr_t kGranuleBytes = 8;  // the smallest vector

/// The last write of a granule. `release`: the number of the first store_release that knew of it; 0: none did.
struct Write {
  uint16_t thread, site;
  int32_t step;  // of the thread
  uint64_t block;
  int32_t release = 0;
};
struct Handover {
  int32_t releases = 0;
  std::unordered_map<const uint32_t*, int32_t> of_word;  // the number of the last release
  std::unordered_map<uintptr_t, Write> writes;
  std::vector<uintptr_t> kept;  // granules that are not released yet
};
Handover handover;

bool known(const Write& write) {
  return write.block == m.block && a.threads[m.current].known[write.thread] >= write.step;
}

void release_word(uint32_t* p, uint32_t value) {
  *p = value;
  const int32_t number = handover.of_word[p] = ++handover.releases;
  std::erase_if(handover.kept, [&](uintptr_t granule) {
    Write& write = handover.writes[granule];
    if (write.release == 0 && known(write)) write.release = number;
    return write.release != 0;
  });
  ++a.step(m.current);
  m.fibers[m.current].last = {};
}

void acquire_word(const uint32_t* p, uint32_t value, const std::source_location& at) {
  AsyncThread& mine = a.of[m.current];
  mine.word = p;
  mine.value = value;
  while (*p != value) wait_at(State::at_word, "wait_until", at);
  int32_t& seen = a.threads[m.current].known[a.releases()];
  if (const auto last = handover.of_word.find(p); last != handover.of_word.end()) seen = std::max(seen, last->second);
  a.groups[m.current / 128].common_known = false;
  m.fibers[m.current].last = {};
}

}  // namespace

void begin_handover() { handover = {}; }

void check_global(const void* p, size_t size_bytes, bool write, const std::source_location& at) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(p);
  for (uintptr_t granule = address / kGranuleBytes; granule * kGranuleBytes < address + size_bytes; ++granule) {
    const auto found = handover.writes.find(granule);
    // Without a release the kernel hands nothing over, and threads access what they wrote themselves.
    if (found != handover.writes.end() && (handover.releases > 0 || found->second.block != m.block)) {
      const Write& before = found->second;
      if (before.release == 0 || a.threads[m.current].known[a.releases()] < before.release)
        fail(source::kMemoryModel,
             fmt::format("race on global memory at {}: {} what {} of {} block wrote at {}, {}", file_of(at),
                         write ? "writes" : "reads", place_of(before.thread),
                         before.block == m.block ? "this" : "another", file_of(m.sites.at[before.site]),
                         before.release == 0 ? "with no store_release since" : "without a wait_until for its release"));
    }
    if (!write) continue;
    handover.writes[granule] = {static_cast<uint16_t>(m.current), m.sites.of(at), a.step(m.current), m.block};
    handover.kept.push_back(granule);
  }
}

void store_release(uint32_t* p, uint32_t value, const std::source_location& at) {
  require_hopper("store_release", at);
  const Change change = change_of("store_release", at);
  if (change == Change::removed) return;
  if (change == Change::early) return pass_early([=] { release_word(p, value); });
  release_word(p, value);
}

void wait_until(const uint32_t* p, uint32_t value, const std::source_location& at) {
  require_hopper("wait_until", at);
  const Change change = change_of("wait_until", at);
  if (change == Change::removed) return;
  if (change == Change::late) return move_down([=] { acquire_word(p, value, at); });
  acquire_word(p, value, at);
}

}  // namespace slipstream::emulation
