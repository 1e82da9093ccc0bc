// SPDX-License-Identifier: Apache-2.0
#pragma once
// Clocks of threads and their asynchronous operations in flight: between clocks.cpp, phase_barriers.cpp, tma.cpp,
// warpgroup.cpp, handover.cpp and registers.cpp.
//
// A kernel that reaches an asynchronous operation gets vector clocks. Each thread counts its own steps and knows a
// number of steps of every other thread. An access is ordered before the running thread if that thread knows the step
// of the access. A barrier passes the knowledge of the arriving threads to the waiting ones. Three more kinds of steps
// are counted like those of threads: the phases of each barrier, which complete TMA loads, the products of each
// warpgroup, and the releases of global memory.

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulation/asynchronous.h"
#include "tests/emulation/machine.h"

namespace slipstream::emulation {

constexpr size_t kBarriersMax = 64, kGroupsMax = kThreadsMax / 128, kNamedMax = 16;

/// Known steps of threads, of phases, of products and of releases. `fenced`: steps of threads whose writes a fence has
/// ordered before asynchronous accesses.
struct Knowledge {
  std::vector<int32_t> known, fenced;
};

/// A barrier in shared memory (mbarrier).
struct PhaseBarrier {
  uint64_t* words = nullptr;
  uint16_t init_site = 0;
  size_t init_thread = 0;
  int32_t init_step = 0;
  bool init_fenced = false;
  int arrivals = 0, pending = 0;  // in a phase; of them, still to come
  int64_t expected_bytes = 0, arrived_bytes = 0;
  int32_t phase = 0, waited = 0;  // phases that have completed; of them, phases that a thread has waited for
  Knowledge arriving, completed;
};

struct NamedBarrier {
  int threads = 0, arrived = 0;
  uint16_t site = 0;
  std::bitset<kThreadsMax> who;
  Knowledge arriving, completed;
};

/// A load of TMA: it writes shared memory until the phase of its barrier completes.
struct Load {
  size_t thread;
  uint16_t site;
  size_t barrier;
  int32_t phase;
  unsigned char* to;
  std::vector<unsigned char> image;  // the bytes as they will lie in shared memory
};
/// A store of TMA: it reads shared memory until its thread has waited.
struct Store {
  size_t thread, group;
  uint16_t site;
  bool read = false;
  int32_t step = 0;  // of its thread, at the wait
  std::function<void()> write;
};

/// 16 bytes of dynamic shared memory. Asynchronous accesses by number + 1: the last load (of `loads`), store and, by
/// warpgroup, product.
struct Cell {
  std::array<bool, 2> barrier = {};  // each half: it holds a barrier
  bool generic = false;              // instructions have written since the load
  uint32_t load = 0, store = 0;
  std::array<int32_t, kGroupsMax> product = {};
};

struct Warpgroup {
  size_t arrived = 0;  // threads at a joint operation
  std::array<Product, 128> products;
  int32_t started = 0;           // products
  std::vector<int32_t> commits;  // products started before each commit
  std::vector<uint16_t> sites;   // of products
  // Of each thread.
  int registers = 0;
  bool registers_known = false;
  // Of all threads; it is computed again after a change.
  Knowledge common;
  bool common_known = false;
};

struct AsyncThread {
  // The barrier and the phase that it waits for. `unseen`: the phase has completed, and the thread has not run since.
  size_t barrier = 0;
  int parity = 0;
  int32_t phase = 0;
  bool unseen = false;
  // The word of global memory that it waits for.
  const uint32_t* word = nullptr;
  uint32_t value = 0;
  int wanted_registers = 0;
  bool wgmma_fenced = false;
  struct Fragment {
    const uint32_t* at;
    std::array<uint32_t, 4> values;
  };
  std::vector<Fragment> fragments;  // named by fences
  size_t store_groups = 0;          // commits of stores
  int32_t products_before = 0;      // known before the last wait for products
  std::vector<size_t> stores_read;  // completed by the last wait for stores
};

struct Async {
  size_t width = 0;  // of `known`: threads, kBarriersMax phases, kGroupsMax products, releases
  std::vector<Knowledge> threads;
  std::vector<AsyncThread> of;  // by thread
  std::vector<PhaseBarrier> barriers;
  std::vector<NamedBarrier> named = std::vector<NamedBarrier>(kNamedMax);
  std::vector<Warpgroup> groups = std::vector<Warpgroup>(kGroupsMax);
  std::vector<Load> loads;
  size_t landed = 0;  // loads
  std::vector<Store> stores;
  std::vector<Cell> cells;

  size_t phase_of(size_t barrier) const { return m.threads + barrier; }
  size_t product_of(size_t group) const { return m.threads + kBarriersMax + group; }
  size_t releases() const { return m.threads + kBarriersMax + kGroupsMax; }
  int32_t& step(size_t thread) { return threads[thread].known[thread]; }
};
extern Async a;

// --- clocks.cpp

/// Starts the clocks of the kernel; an error unless the emulated device has compute capability 9.0.
void require_hopper(const char* operation, const std::source_location& at);
/// Advances the machine's time past the clocks of all threads, which run ahead of it.
void pass_clocks();
/// Begins a block of a kernel with clocks.
void begin_clocks();
/// Threads [first, first + count) have met at a barrier.
void meet_clocks(size_t first, size_t count);
/// Adds what a thread knows to `to`, and begins its next step.
void release(size_t thread, Knowledge& to);
void acquire(size_t thread, const Knowledge& from);
/// Runs `pass` as if it came before the thread's last wait for products or stores.
void pass_before_wait(Access::Kind last, const std::function<void()>& pass);
/// Adds the writes that the running thread knows to those that a fence has ordered.
void fence_now();
/// The error of a block's threads that all wait, with every line, and `why` they wait for ever.
[[noreturn]] void report_deadlock(const std::string& why);
/// Checks that nothing is in flight any more.
void end_thread();
void end_block();

/// The cells of [p, p + size_bytes) of dynamic shared memory; null if it is none.
Cell* cells_of(const void* p, size_t size_bytes);
/// An access by instructions must not meet loads in flight, and a write must not meet asynchronous reads either.
void check_generic(const void* p, size_t size_bytes, bool write, const std::source_location& at);
/// An access to a cell with this knowledge. The cell's earlier asynchronous accesses must be ordered before it.
struct Asynchronous {
  const Knowledge& by;
  const char* now;  // "wgmma reads"
  bool write;
  const std::source_location& at;
};
void check_asynchronous(Cell& cell, const Asynchronous& access);
/// Bytes of dynamic shared memory hold no barrier.
void check_no_barrier(const void* p, size_t size_bytes, const char* now, const std::source_location& at);
std::string offset_of(const void* p);
/// The address of [p, ...) in the shared memory of the device, for p in dynamic shared memory.
uint32_t shared_address(const void* p);

// --- shared_memory.cpp

/// The earlier accesses of instructions to a cell must be ordered before this one, writes with a fence between. A write
/// forgets them.
void check_granules(const unsigned char* p, const Asynchronous& access);

// --- phase_barriers.cpp

std::string described(const PhaseBarrier& barrier);
PhaseBarrier& barrier_at(uint64_t* words, const char* operation, const std::source_location& at);
/// The barriers of the running thread are as if it initialised them now.
void initialise_again();
/// Completes the phase if all arrivals and bytes are there.
void complete_phase(PhaseBarrier& barrier);

// --- tma.cpp

/// Completes the oldest load in flight. False: there is none.
bool land_next();

// --- tensor_map.cpp

/// What the driver has encoded.
kernels::hopper::TensorShape decoded(const TensorMap& map, const char* operation, const std::source_location& at);

// --- handover.cpp

/// Forgets the global memory that the kernel before wrote.
void begin_handover();
/// An access to global memory by the running thread.
void check_global(const void* p, size_t size_bytes, bool write, const std::source_location& at);

// --- warpgroup.cpp

/// The last of the group's 128 threads runs `action`, then all go on.
void meet_group(const char* operation, const std::source_location& at, const std::function<void()>& action);

}  // namespace slipstream::emulation
