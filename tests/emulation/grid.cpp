// SPDX-License-Identifier: Apache-2.0
// Grids of blocks: as many blocks as fit on the device are resident and take turns, and the next one begins when one
// has ended.

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "tests/emulation/async_machine.h"
#include "tests/emulation/cuda_runtime.h"

namespace slipstream::emulation {
namespace {

std::mutex machine;                     // one kernel at a time; under it m
thread_local bool runs_kernel = false;  // this thread, its fibers too
struct sigaction before_run;            // the handler of faults while no kernel runs

std::function<void(void*, std::function<void()>)>& streams() {
  static std::function<void(void*, std::function<void()>)> runs;
  return runs;
}

constexpr size_t kRegisters = 65536, kReservedBytes = 1024;  // of a multiprocessor; of the shared memory of each block

bool tests_begin_early = false;  // most kernels of tests have no wait

/// The places of the device. The state of the running one, if there is any, is in `m` and `a`.
struct Parked {
  Place place;
  Async async;
  bool occupied = false;
};
std::vector<Parked> parked;
constexpr size_t kNone = SIZE_MAX;
size_t running = kNone;

/// Calls body(bytes of a static array) for the static shared arrays of the running block: all blocks use the same ones.
template <typename Body>
void for_static_regions(const Body& body) {
  for (const Region& region : m.regions)
    if (region.base != m.dynamic) body(region.base, region.size_bytes);
}
void exchange_with(Parked& other) {
  std::swap(static_cast<Place&>(m), other.place);
  std::swap(a, other.async);
}
/// The block of the place, or the next one there, runs now.
void enter(size_t place) {
  if (place == running) return;
  if (running != kNone) {
    m.static_contents.clear();
    for_static_regions(
        [](const unsigned char* p, size_t bytes) { m.static_contents.insert(m.static_contents.end(), p, p + bytes); });
    exchange_with(parked[running]);
  }
  running = place;
  exchange_with(parked[place]);
  size_t from = 0;
  for_static_regions([&](unsigned char* p, size_t bytes) {
    std::memcpy(p, m.static_contents.data() + from, bytes);
    from += bytes;
  });
  blockIdx = {m.index.x, m.index.y, m.index.z};
}

void begin_block(const Size3& index) {
  m.index = index;
  m.block = ++m.blocks;
  blockIdx = {index.x, index.y, index.z};
  m.done = m.at_barrier = 0;
  m.dynamic_storage.resize(m.dynamic_bytes + 1023);
  m.dynamic =
      m.dynamic_storage.data() + (dynamic_base() - reinterpret_cast<uintptr_t>(m.dynamic_storage.data())) % 1024;
  begin_shared();
  if (m.dynamic_bytes > 0) declare_shared(m.dynamic, m.dynamic_bytes);
  m.warps.resize(std::max(m.warps.size(), (m.threads + 31) / 32));
  for (size_t w = 0; w * 32 < m.threads; ++w) {
    m.warps[w].lanes = static_cast<int>(std::min<size_t>(32, m.threads - w * 32));
    m.warps[w].arrived = 0;
    m.warps[w].differs = false;
    m.warps[w].generation = 0;
    m.warps[w].ordered_at = m.time;
  }
  prepare_fibers();
  m.clocked = m.clocked_kernel;
  if (m.clocked) begin_clocks();
}

Size3 index_of_block(const Size3& grid, size_t number) {
  const auto n = static_cast<unsigned>(number);
  return {n % grid.x, n / grid.x % grid.y, n / grid.x / grid.y};
}

void run_grid(const Size3& grid, size_t places) {
  const size_t blocks = size_t{grid.x} * grid.y * grid.z;
  parked.resize(std::max(parked.size(), places));
  m.regions.clear();
  for (Parked& all : parked) all.place.regions.clear(), all.occupied = false;
  for (size_t ended = 0, begun = 0; ended < blocks;) {
    bool progress = false;
    for (size_t i = 0; i < places; ++i) {
      const size_t place = m.descending ? places - 1 - i : i;
      if (!parked[place].occupied && begun == blocks) continue;
      enter(place);
      if (!std::exchange(parked[place].occupied, true)) {
        begin_block(index_of_block(grid, m.descending ? blocks - 1 - begun : begun));
        ++begun;
      }
      progress |= run_round();
      if (m.done < m.threads) continue;
      if (m.clocked) end_block();
      parked[place].occupied = false;
      ++ended;
    }
    if (progress) continue;
    size_t first = 0;
    while (!parked[first].occupied) ++first;
    enter(first);
    report_deadlock(fmt::format("; all {} resident blocks wait, and {} more begin only after one of them has ended",
                                begun - ended, blocks - begun));
  }
}

void on_fault(int signal, siginfo_t* info, void* context) {
  // Memory outside the emulator may belong to another handler (tests/guard).
  if (!memory_around(info->si_addr) && signal == SIGSEGV && (before_run.sa_flags & SA_SIGINFO) &&
      before_run.sa_sigaction != on_fault)
    return before_run.sa_sigaction(signal, info, context);
  if (!runs_kernel) {
    ::signal(signal, SIG_DFL);
    return;
  }
  m.fault_address = info->si_addr;
  siglongjmp(m.fault, 1);
}

}  // namespace

bool in_kernel() { return runs_kernel; }
void set_begins_early(bool begins_early) { tests_begin_early = begins_early; }

int resident_blocks(size_t threads, size_t shared_bytes) {
  const bool hopper = compute_capability() >= 90;
  const size_t threads_max = hopper ? 2048 : 1536, blocks_max = hopper ? 32 : 16,
               shared_max = (hopper ? size_t{228} : size_t{100}) * 1024;
  const size_t warps = (threads + 31) / 32, registers = static_cast<size_t>(launch_registers(threads));
  const size_t each = std::min({threads_max / (32 * warps), blocks_max, shared_max / (shared_bytes + kReservedBytes),
                                kRegisters / (32 * warps * registers)});
  return kMultiprocessors * static_cast<int>(std::max<size_t>(1, each));
}

void set_streams(std::function<void(void*, std::function<void()>)> runs) { streams() = std::move(runs); }
static std::function<void()>& wait() {
  static std::function<void()> wait;
  return wait;
}
void set_wait_for_streams(std::function<void()> waits) { wait() = std::move(waits); }
void wait_for_streams() {
  if (wait()) wait()();
}
void enqueue(void* stream, std::function<void()> command) {
  streams() ? streams()(stream, std::move(command)) : command();
}

void run(Size3 grid, Size3 block, size_t shared_bytes, const std::function<void()>& body,
         const std::source_location& site, const std::string& kernel) {
  const std::lock_guard one_at_a_time(machine);
  m.site = site;
  m.kernel = kernel;
  m.threads = size_t{block.x} * block.y * block.z;
  const size_t blocks = size_t{grid.x} * grid.y * grid.z;
  if (m.threads == 0 || m.threads > kThreadsMax || blocks == 0 || grid.y > 65535 || grid.z > 65535)
    throw Error(source::kCapabilities,
                fmt::format("[emulation] launch at {}: a grid of {} x {} x {} blocks of {} threads cannot run.",
                            file_of(site), grid.x, grid.y, grid.z, m.threads));
  if (shared_bytes > shared_memory_bytes())
    throw Error(source::kCapabilities,
                fmt::format("[emulation] launch at {}: {} bytes of shared memory, a block has at most {}.",
                            file_of(site), shared_bytes, shared_memory_bytes()));
  struct sigaction action = {}, old_segv, old_bus;
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &old_segv);
  before_run = old_segv;
  sigaction(SIGBUS, &action, &old_bus);
  m.body = &body;
  see_memories();
  m.dynamic_bytes = (shared_bytes + 15) / 16 * 16;
  m.clocked_kernel = false;
  m.begins_early = tests_begin_early || file_of(site).starts_with("kernels/");
  begin_handover();
  blockDim = {block.x, block.y, block.z};
  gridDim = {grid.x, grid.y, grid.z};
  ++m.launches;
  elapse(static_cast<int64_t>(m.threads * blocks));
  const auto finish = [&] {
    runs_kernel = false;
    sigaction(SIGSEGV, &old_segv, nullptr);
    sigaction(SIGBUS, &old_bus, nullptr);
  };
  if (sigsetjmp(m.fault, 1)) {
    finish();
    throw Error(source::kOutOfBounds, sentence(describe(m.fault_address)));
  }
  runs_kernel = true;
  try {
    run_grid(grid, std::min(blocks, static_cast<size_t>(resident_blocks(m.threads, m.dynamic_bytes))));
  } catch (...) {
    finish();
    throw;
  }
  finish();
}

}  // namespace slipstream::emulation
