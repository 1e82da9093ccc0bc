// SPDX-License-Identifier: Apache-2.0
// Vector clocks of threads, and the checks of shared memory that need them.

#include <fmt/core.h>

#include <map>
#include <tuple>
#include <utility>

#include "tests/emulation/async_machine.h"

namespace slipstream::emulation {

Async a;

namespace {

#if defined(__x86_64__) && !defined(__clang__)
__attribute__((target_clones("avx2", "default"), optimize("O3")))
#endif
void raise_each(int32_t* __restrict to, const int32_t* __restrict from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = to[i] < from[i] ? from[i] : to[i];
}

/// "1 thread from thread (0, 0, 0) waits at a.cu:1 (__syncthreads)", for every line.
std::string waiting_threads() {
  std::map<std::tuple<std::string, std::string>, std::pair<size_t, size_t>> places;  // first thread, count
  for (size_t t = 0; t < m.threads; ++t) {
    const Fiber& fiber = m.fibers[t];
    if (fiber.state == State::done) continue;
    std::string what(fiber.operation);
    if (fiber.state == State::at_phase)
      what += fmt::format(" for parity {} of {}", a.of[t].parity, described(a.barriers[a.of[t].barrier]));
    if (fiber.state == State::at_named_barrier) {
      const NamedBarrier& named = a.named[a.of[t].barrier];
      what += fmt::format(", barrier {}: {} of {} threads have arrived", a.of[t].barrier, named.arrived, named.threads);
    }
    if (fiber.state == State::at_registers) what += fmt::format(" to {} registers", a.of[t].wanted_registers);
    if (fiber.state == State::at_word) what += fmt::format(" for {}, it is {}", a.of[t].value, *a.of[t].word);
    ++places.try_emplace({file_of(fiber.at), what}, t, 0).first->second.second;
  }
  std::string text;
  for (const auto& [place, threads] : places)
    text += fmt::format("{}{} thread{} from {} on wait{} at {} ({})", text.empty() ? "" : "; ", threads.second,
                        threads.second == 1 ? "" : "s", place_of(threads.first), threads.second == 1 ? "s" : "",
                        std::get<0>(place), std::get<1>(place));
  return text;
}

/// The rule that makes threads of the block wait.
const Source& rule_of_wait() {
  static constexpr std::pair<State, Source> kRules[] = {{State::at_registers, source::kSetmaxnreg},
                                                        {State::at_word, source::kOrderOfBlocks},
                                                        {State::at_phase, source::kMbarrierWait},
                                                        {State::at_named_barrier, source::kNamedBarrier},
                                                        {State::at_group_operation, source::kWgmma}};
  for (const auto& [state, rule] : kRules)
    for (size_t t = 0; t < m.threads; ++t)
      if (m.fibers[t].state == state) return rule;
  return source::kSyncthreads;
}

[[noreturn]] void fail_async(const Source& source, const Asynchronous& access, const void* p,
                             const std::string& before) {
  fail(source,
       fmt::format("race on shared memory at {}: {} {}, {}", file_of(access.at), access.now, offset_of(p), before));
}

void merge(std::vector<int32_t>& to, const std::vector<int32_t>& from) {
  if (to.size() < from.size()) to.resize(from.size(), 0);
  raise_each(to.data(), from.data(), from.size());
}

}  // namespace

void require_hopper(const char* operation, const std::source_location& at) {
  if (compute_capability() < 90)
    fail(source::kCapabilities,
         fmt::format("{} at {} needs compute capability 9.0, and the emulated device has {}.{}", operation, file_of(at),
                     compute_capability() / 10, compute_capability() % 10));
  if (m.clocked) return;
  m.clocked = m.clocked_kernel = true;
  begin_clocks();
}

void pass_clocks() {
  for (size_t t = 0; t < a.of.size(); ++t) m.time = std::max(m.time, static_cast<uint32_t>(a.step(t)));
}

void begin_clocks() {
  a.width = a.releases() + 1;
  a.threads.resize(std::max(a.threads.size(), m.threads));
  a.of.assign(m.threads, {});
  for (size_t t = 0; t < m.threads; ++t) {
    Knowledge& thread = a.threads[t];
    thread.known.assign(a.width, 0);
    thread.fenced.assign(m.threads, 0);
    for (size_t u = 0; u < m.threads; ++u) {
      const uint32_t ordered_at = std::max(m.block_ordered_at, u / 32 == t / 32 ? m.warps[u / 32].ordered_at : 0);
      thread.known[u] = static_cast<int32_t>(u == t ? m.time : ordered_at - 1);
    }
  }
  a.barriers.clear();
  a.barriers.reserve(kBarriersMax);
  a.named.assign(kNamedMax, {});
  for (Warpgroup& group : a.groups) {
    group.arrived = 0;
    group.started = 0;
    group.commits.clear();
    group.sites.clear();
    group.registers = launch_registers(m.threads);
    group.registers_known = false;
    group.common_known = false;
  }
  a.loads.clear();
  a.landed = 0;
  a.stores.clear();
  a.cells.assign(m.dynamic_bytes / 16, {});
}

void meet_clocks(size_t first, size_t count) {
  Knowledge all;
  for (size_t t = first; t < first + count; ++t) {
    merge(all.known, a.threads[t].known);
    merge(all.fenced, a.threads[t].fenced);
  }
  for (size_t t = first; t < first + count; ++t) {
    a.threads[t] = all;
    ++a.step(t);
    a.groups[t / 128].common_known = false;
  }
}

void release(size_t thread, Knowledge& to) {
  merge(to.known, a.threads[thread].known);
  merge(to.fenced, a.threads[thread].fenced);
  ++a.step(thread);
}

void acquire(size_t thread, const Knowledge& from) {
  merge(a.threads[thread].known, from.known);
  merge(a.threads[thread].fenced, from.fenced);
  a.groups[thread / 128].common_known = false;
}

void pass_before_wait(Access::Kind last, const std::function<void()>& pass) {
  AsyncThread& mine = a.of[m.current];
  const size_t products = a.product_of(m.current / 128);
  const int32_t complete = a.threads[m.current].known[products];
  if (last == Access::Kind::products) a.threads[m.current].known[products] = mine.products_before;
  pass();
  int32_t& now = a.threads[m.current].known[products];
  now = std::max(now, complete);
  if (last == Access::Kind::stores)
    for (size_t store : mine.stores_read) a.stores[store].step = a.step(m.current);
}

void fence_now() {
  Knowledge& mine = a.threads[m.current];
  raise_each(mine.fenced.data(), mine.known.data(), m.threads);
  ++a.step(m.current);
  a.groups[m.current / 128].common_known = false;
}

void report_deadlock(const std::string& why) {
  size_t first = 0;
  while (m.fibers[first].state == State::done) ++first;
  m.current = first;
  fail(rule_of_wait(), "deadlock: " + waiting_threads() + why);
}

void end_thread() {
  const Warpgroup& group = a.groups[m.current / 128];
  const int32_t complete = a.threads[m.current].known[a.product_of(m.current / 128)];
  if (complete < group.started)
    fail(source::kWgmmaWait, fmt::format("it returns while the wgmma at {} is in flight: wgmma_wait<0> is missing",
                                         file_of(m.sites.at[group.sites[static_cast<size_t>(complete)]])));
  for (const Store& store : a.stores)
    if (store.thread == m.current && !store.read)
      fail(source::kTensorCopyWait,
           fmt::format("it returns while its tma_store at {} reads shared memory: tma_store_wait_read<0> is missing",
                       file_of(m.sites.at[store.site])));
}

void end_block() {
  while (land_next()) {
  }
  for (const Load& load : a.loads) {
    if (load.phase < a.barriers[load.barrier].waited) continue;
    m.current = load.thread;
    fail(source::kAsyncCompletion, fmt::format("the block ends, and no thread has waited for its tma_load at {}",
                                               file_of(m.sites.at[load.site])));
  }
  for (Store& store : a.stores)
    if (store.write) std::exchange(store.write, nullptr)();
}

Cell* cells_of(const void* p, size_t size_bytes) {
  const size_t offset = static_cast<size_t>(static_cast<const unsigned char*>(p) - m.dynamic);
  if (offset >= m.dynamic_bytes || size_bytes > m.dynamic_bytes - offset) return nullptr;
  return &a.cells[offset / 16];
}

uint32_t shared_address(const void* p) {
  return dynamic_base() + static_cast<uint32_t>(static_cast<const unsigned char*>(p) - m.dynamic);
}

std::string offset_of(const void* p) {
  return fmt::format("byte {} of dynamic shared memory", static_cast<const unsigned char*>(p) - m.dynamic);
}

void check_asynchronous(Cell& cell, const Asynchronous& access) {
  const unsigned char* p = m.dynamic + 16 * (&cell - a.cells.data());
  const auto knows = [&](size_t step, int32_t value) { return access.by.known[step] >= value; };
  if (cell.load != 0) {
    const Load& load = a.loads[cell.load - 1];
    if (!knows(a.phase_of(load.barrier), load.phase + 1))
      fail_async(source::kAsyncCompletion, access, p,
                 fmt::format("which {} began to load at {}, without a wait for its barrier since",
                             place_of(load.thread), file_of(m.sites.at[load.site])));
  }
  if (!access.write) return;
  if (cell.store != 0) {
    const Store& store = a.stores[cell.store - 1];
    const std::string by =
        fmt::format("which {} began to store at {}", place_of(store.thread), file_of(m.sites.at[store.site]));
    if (!store.read) fail_async(source::kTensorCopyWait, access, p, by + ", without a wait since");
    if (!knows(store.thread, store.step))
      fail_async(source::kMemoryModel, access, p, by + ", with no barrier between its wait and this thread");
  }
  for (size_t g = 0; 128 * g < m.threads; ++g)
    if (!knows(a.product_of(g), cell.product[g]))
      fail_async(source::kWgmmaWait, access, p,
                 fmt::format("which the wgmma of {} and 127 more at {} reads, without a wait since", place_of(128 * g),
                             file_of(m.sites.at[a.groups[g].sites[static_cast<size_t>(cell.product[g] - 1)]])));
}

void check_no_barrier(const void* p, size_t size_bytes, const char* now, const std::source_location& at) {
  const size_t begin = static_cast<size_t>(static_cast<const unsigned char*>(p) - m.dynamic);
  for (size_t half = begin / 8; half * 8 < begin + size_bytes; ++half)
    if (a.cells[half / 2].barrier[half % 2])
      fail(source::kMbarrier,
           fmt::format("{} at {} {}, which holds a barrier", now, file_of(at), offset_of(m.dynamic + 8 * half)));
}

void check_generic(const void* p, size_t size_bytes, bool write, const std::source_location& at) {
  Cell* cell = cells_of(p, size_bytes);
  if (!cell) return;
  if (write) check_no_barrier(p, size_bytes, "writes", at);
  const Cell* const end = cells_of(static_cast<const unsigned char*>(p) + size_bytes - 1, 1) + 1;
  for (; cell != end; ++cell) {
    check_asynchronous(*cell, {a.threads[m.current], write ? "writes" : "reads", write, at});
    if (write) cell->generic = true;
  }
}

}  // namespace slipstream::emulation
