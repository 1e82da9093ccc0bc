// SPDX-License-Identifier: Apache-2.0
// Barriers with phases in shared memory (mbarrier), and named barriers.

#include <fmt/core.h>

#include <utility>

#include "tests/emulation/async_machine.h"

namespace slipstream::emulation {
namespace {

/// What the 8 bytes of a barrier hold: code that writes them changes it.
uint64_t token_of(const PhaseBarrier& barrier) {
  return 0xb0a2a3e275ff0000u + static_cast<uint64_t>(&barrier - a.barriers.data());
}
size_t index_of(const PhaseBarrier& barrier) { return static_cast<size_t>(&barrier - a.barriers.data()); }
std::string place_of(const PhaseBarrier& barrier) {
  return is_shared(barrier.words) && cells_of(barrier.words, 8)
             ? "the barrier at " + offset_of(barrier.words)
             : fmt::format("barrier {} of the block", index_of(barrier));
}

void arrive(uint64_t* words, const char* operation, int64_t bytes, const std::source_location& at) {
  PhaseBarrier& barrier = barrier_at(words, operation, at);
  if (barrier.pending == 0)
    fail(source::kMbarrierArrive, fmt::format("{} at {} is beyond the {} arrivals of phase {} of {}", operation,
                                              file_of(at), barrier.arrivals, barrier.phase, place_of(barrier)));
  barrier.expected_bytes += bytes;
  --barrier.pending;
  release(m.current, barrier.arriving);
  m.fibers[m.current].last = {};
  complete_phase(barrier);
}

void wait(uint64_t* words, int parity, const std::source_location& at) {
  PhaseBarrier& barrier = barrier_at(words, "barrier_wait", at);
  if (parity != 0 && parity != 1)
    fail(source::kMbarrierWait, fmt::format("barrier_wait at {} for parity {}: it is 0 or 1", file_of(at), parity));
  AsyncThread& mine = a.of[m.current];
  if ((barrier.phase & 1) != parity) {
    acquire(m.current, barrier.completed);
    barrier.waited = barrier.phase;
  } else {
    mine.barrier = index_of(barrier);
    mine.parity = parity;
    mine.phase = barrier.phase;
    wait_at(State::at_phase, "barrier_wait", at);
    mine.unseen = false;
  }
  m.fibers[m.current].last = {};
}

void arrive_named(const char* operation, int id, int threads, const std::source_location& at) {
  if (id < 1 || id >= static_cast<int>(kNamedMax))
    fail(source::kNamedBarrier, fmt::format("{} at {} uses barrier {}: 1 to 15 are free, 0 belongs to __syncthreads",
                                            operation, file_of(at), id));
  if (threads < 32 || threads % 32 != 0 || static_cast<size_t>(threads) > m.threads)
    fail(source::kNamedBarrier, fmt::format("{} at {} is for {} threads: a multiple of 32 of at most the block's {}",
                                            operation, file_of(at), threads, m.threads));
  NamedBarrier& named = a.named[static_cast<size_t>(id)];
  if (named.arrived > 0 && named.threads != threads)
    fail(source::kNamedBarrier,
         fmt::format("{} at {} is for {} threads, but barrier {} has been reached at {} for {}", operation, file_of(at),
                     threads, id, file_of(m.sites.at[named.site]), named.threads));
  if (named.who[m.current])
    fail(source::kNamedBarrier,
         fmt::format("{} at {} reaches barrier {} twice, the last time at {}, before all {} threads have", operation,
                     file_of(at), id, file_of(m.sites.at[named.site]), threads));
  named.who[m.current] = true;
  named.threads = threads;
  named.site = m.sites.of(at);
  release(m.current, named.arriving);
  m.fibers[m.current].last = {};
  if (++named.arrived < threads) return;
  std::swap(named.completed, named.arriving);
  named.arriving = {};
  named.arrived = 0;
  named.who.reset();
  for (size_t t = 0; t < m.threads; ++t)
    if (m.fibers[t].state == State::at_named_barrier && a.of[t].barrier == static_cast<size_t>(id)) {
      acquire(t, named.completed);
      m.fibers[t].state = State::ready;
    }
}

void sync_named(int id, int threads, const std::source_location& at) {
  arrive_named("named_barrier_sync", id, threads, at);
  const NamedBarrier& named = a.named[static_cast<size_t>(id)];
  if (named.arrived == 0) {
    acquire(m.current, named.completed);
  } else {
    a.of[m.current].barrier = static_cast<size_t>(id);
    wait_at(State::at_named_barrier, "named_barrier_sync", at);
  }
  m.fibers[m.current].last = {};
}

}  // namespace

void initialise_again() {
  for (PhaseBarrier& barrier : a.barriers)
    if (barrier.init_thread == m.current) barrier.init_step = a.step(m.current);
}

std::string described(const PhaseBarrier& barrier) {
  std::string text = fmt::format("{}, whose phase {} lacks {} of {} arrivals", place_of(barrier), barrier.phase,
                                 barrier.pending, barrier.arrivals);
  if (barrier.expected_bytes != barrier.arrived_bytes)
    text += fmt::format(" and has {} of {} expected bytes", barrier.arrived_bytes, barrier.expected_bytes);
  return text;
}

PhaseBarrier& barrier_at(uint64_t* words, const char* operation, const std::source_location& at) {
  require_hopper(operation, at);
  for (PhaseBarrier& barrier : a.barriers) {
    if (barrier.words != words) continue;
    if (*words != token_of(barrier))
      fail(source::kMbarrier,
           fmt::format("{} at {} uses {}, whose 8 bytes were overwritten since its barrier_init at {}", operation,
                       file_of(at), place_of(barrier), file_of(m.sites.at[barrier.init_site])));
    if (m.current != barrier.init_thread && a.threads[m.current].known[barrier.init_thread] < barrier.init_step)
      fail(source::kMemoryModel,
           fmt::format("{} at {} uses {}, which {} initialised at {} with no barrier between", operation, file_of(at),
                       place_of(barrier), emulation::place_of(barrier.init_thread),
                       file_of(m.sites.at[barrier.init_site])));
    return barrier;
  }
  fail(source::kMbarrierLifecycle,
       fmt::format("{} at {} uses a barrier that no barrier_init has initialised in this block", operation,
                   file_of(at)));
}

void complete_phase(PhaseBarrier& barrier) {
  if (barrier.pending > 0 || barrier.arrived_bytes < barrier.expected_bytes) return;
  if (barrier.arrived_bytes > barrier.expected_bytes)
    fail(
        source::kMbarrierTransactions,
        fmt::format("phase {} of {} received {} bytes, but its arrivals expect {}: barrier_arrive_expect must name the "
                    "bytes of all boxes",
                    barrier.phase, place_of(barrier), barrier.arrived_bytes, barrier.expected_bytes));
  const size_t index = index_of(barrier);
  for (size_t t = 0; t < m.threads; ++t)
    if (a.of[t].unseen && a.of[t].barrier == index)
      fail(source::kMbarrierPhases,
           fmt::format(
               "phase {} of {} completes before {} has seen the end of phase {} at {}: its wait for that parity "
               "may never end",
               barrier.phase, place_of(barrier), emulation::place_of(t), a.of[t].phase, file_of(m.fibers[t].at)));
  barrier.completed = std::exchange(barrier.arriving, {});
  ++barrier.phase;
  barrier.completed.known.resize(a.width, 0);
  barrier.completed.known[a.phase_of(index)] = barrier.phase;
  barrier.pending = barrier.arrivals;
  barrier.expected_bytes = barrier.arrived_bytes = 0;
  for (size_t t = 0; t < m.threads; ++t) {
    if (m.fibers[t].state != State::at_phase || a.of[t].barrier != index) continue;
    acquire(t, barrier.completed);
    barrier.waited = barrier.phase;
    a.of[t].unseen = true;
    m.fibers[t].state = State::ready;
  }
}

void barrier_init(uint64_t* words, int arrivals, const std::source_location& at) {
  require_hopper("barrier_init", at);
  if (!is_shared(words) || reinterpret_cast<uintptr_t>(words) % 8 != 0)
    fail(source::kMbarrierSize,
         fmt::format("barrier_init at {} of an address that is not a multiple of 8 in shared memory", file_of(at)));
  if (arrivals < 1 || arrivals >= 1 << 20)
    fail(source::kMbarrierContents,
         fmt::format("barrier_init at {} for {} arrivals: 1 to 1048575 are possible", file_of(at), arrivals));
  for (const PhaseBarrier& barrier : a.barriers)
    if (barrier.words == words)
      fail(source::kMbarrierInit,
           fmt::format("barrier_init at {} of {}, which {} initialised at {}", file_of(at), place_of(barrier),
                       emulation::place_of(barrier.init_thread), file_of(m.sites.at[barrier.init_site])));
  if (a.barriers.size() == kBarriersMax)
    fail(source::kEmulator, fmt::format("more than {} barriers in a block", kBarriersMax));
  shared_write(words, 8, at);
  m.fibers[m.current].last = {Access::Kind::init, words, 8, at};
  if (Cell* cell = cells_of(words, 8)) cell->barrier[reinterpret_cast<uintptr_t>(words) / 8 % 2] = true;
  PhaseBarrier& barrier = a.barriers.emplace_back();
  barrier.words = words;
  barrier.init_site = m.sites.of(at);
  barrier.init_thread = m.current;
  barrier.init_step = a.step(m.current);
  barrier.arrivals = barrier.pending = arrivals;
  *words = token_of(barrier);
}

void barrier_init_fence(const std::source_location& at) {
  require_hopper("barrier_init_fence", at);
  if (change_of("barrier_init_fence", at) == Change::removed) return;
  for (PhaseBarrier& barrier : a.barriers)
    if (barrier.init_thread == m.current) barrier.init_fenced = true;
}

void barrier_arrive(uint64_t* words, const std::source_location& at) {
  require_hopper("barrier_arrive", at);
  const Change change = change_of("barrier_arrive", at);
  if (change == Change::removed) return;
  if (change == Change::early) return pass_early([&] { arrive(words, "barrier_arrive", 0, at); });
  arrive(words, "barrier_arrive", 0, at);
}

void barrier_arrive_expect(uint64_t* words, uint32_t bytes, const std::source_location& at) {
  require_hopper("barrier_arrive_expect", at);
  const Change change = change_of("barrier_arrive_expect", at);
  if (change == Change::removed) return;
  arrive(words, "barrier_arrive_expect", change == Change::weakened ? 0 : bytes, at);
}

void barrier_wait(uint64_t* words, int parity, const std::source_location& at) {
  require_hopper("barrier_wait", at);
  const Change change = change_of("barrier_wait", at);
  if (change == Change::removed) return;
  if (change == Change::late) return move_down([=] { wait(words, parity, at); });
  wait(words, parity, at);
}

void named_barrier_sync(int id, int threads, const std::source_location& at) {
  require_hopper("named_barrier_sync", at);
  const Change change = change_of("named_barrier_sync", at);
  if (change == Change::removed) return;
  if (change == Change::weakened) return pass_warp_barrier(0xffffffffu, at);
  if (change == Change::late) return move_down([=] { sync_named(id, threads, at); });
  if (change == Change::early) return pass_early([&] { sync_named(id, threads, at); });
  sync_named(id, threads, at);
}

void named_barrier_arrive(int id, int threads, const std::source_location& at) {
  require_hopper("named_barrier_arrive", at);
  const Change change = change_of("named_barrier_arrive", at);
  if (change == Change::removed) return;
  if (change == Change::early) return pass_early([&] { arrive_named("named_barrier_arrive", id, threads, at); });
  arrive_named("named_barrier_arrive", id, threads, at);
}

void fence_async(const std::source_location& at) {
  require_hopper("fence_async", at);
  const Change change = change_of("fence_async", at);
  if (change == Change::removed) return;
  if (change == Change::late) return move_down([] { fence_now(); });
  if (change == Change::early) return pass_early([] { fence_now(); });
  fence_now();
}

}  // namespace slipstream::emulation
