// SPDX-License-Identifier: Apache-2.0
#pragma once
// Clocks of threads, and what their asynchronous operations have in flight: between clocks.cpp, phase_barriers.cpp,
// tma.cpp and warpgroup.cpp.
//
// A kernel that reaches an asynchronous operation gets clocks: of every other thread, each thread knows a number of
// steps. An access happened before the running thread if that thread knows the step of it. Barriers carry the knowledge
// of the threads that arrive to those that wait. Two more kinds of steps count as threads: the phases of each barrier,
// which TMA loads complete, and the products of each warpgroup.

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulation/asynchronous.h"
#include "tests/emulation/machine.h"

namespace slipstream::emulation {

constexpr size_t kBarriersMax = 64, kGroupsMax = kThreadsMax / 128, kNamedMax = 16;

/// What a thread knows, or threads that arrived at a barrier: steps of threads, of phases and of products. `fenced`:
/// steps of threads whose writes a fence has ordered before asynchronous accesses.
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
  int arrivals = 0, pending = 0;  // of a phase; still to come
  int64_t expected_bytes = 0, arrived_bytes = 0;
  int32_t phase = 0, waited = 0;  // completed; of them, a thread has waited for
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
  size_t arrived = 0;
  std::array<Product, 128> products;
  // Products started, by commit, and the last known to be complete in each thread's steps.
  int32_t started = 0;
  std::vector<int32_t> commits;
  std::vector<uint16_t> sites;  // of products
  // Of a thread. At the launch the compiler chooses them, at most an equal share.
  int registers = 0;
  bool registers_known = false;
  // The knowledge that all lanes of a warp, and all warps, have; false while it may have changed.
  std::array<Knowledge, 5> common;
  bool common_known = false;
};

struct AsyncThread {
  size_t barrier = 0;  // that it waits for
  int parity = 0;
  int32_t phase = 0;
  bool unseen = false;  // the phase has completed, the thread has not run since
  int wanted_registers = 0;
  bool wgmma_fenced = false;
  struct Fragment {
    const uint32_t* at;
    std::array<uint32_t, 4> values;
  };
  std::vector<Fragment> fragments;  // that fences named
  size_t store_groups = 0;
  // Before the last wait for products; the stores that the last wait completed.
  int32_t products_before = 0;
  std::vector<size_t> stores_read;
};

struct Async {
  size_t width = 0;  // steps that a thread knows: threads, kBarriersMax phases, kGroupsMax products
  std::vector<Knowledge> threads;
  std::vector<AsyncThread> of;
  std::vector<PhaseBarrier> barriers;
  std::array<NamedBarrier, kNamedMax> named;
  std::array<Warpgroup, kGroupsMax> groups;
  std::vector<Load> loads;
  size_t landed = 0;
  std::vector<Store> stores;
  std::vector<Cell> cells;

  size_t phase_of(size_t barrier) const { return m.threads + barrier; }
  size_t product_of(size_t group) const { return m.threads + kBarriersMax + group; }
  int32_t& step(size_t thread) { return threads[thread].known[thread]; }
};
extern Async a;

// --- clocks.cpp

/// Clocks run from here on; the emulated device must be of compute capability 9.0.
void require_hopper(const char* operation, const std::source_location& at);
/// At the begin of a block whose kernel has clocks.
void begin_clocks();
/// Threads [first, first + count) have met at a barrier.
void meet_clocks(size_t first, size_t count);
/// Adds what a thread knows to `to`, and begins its next step.
void release(size_t thread, Knowledge& to);
void acquire(size_t thread, const Knowledge& from);
void merge(std::vector<int32_t>& to, const std::vector<int32_t>& from);
/// Runs `pass` as if it came before the thread's last wait for products or stores.
void pass_before_wait(Access::Kind last, const std::function<void()>& pass);
/// Adds the writes that the running thread knows to those that a fence has ordered.
void fence_now();
/// `fiber`'s deadlock or its threads' error at the end.
[[noreturn]] void report_deadlock();
void end_thread();
void end_block();

/// The cells of [p, p + size_bytes) of dynamic shared memory; null if it is none.
Cell* cells_of(const void* p, size_t size_bytes);
/// What an access by instructions must not meet: loads in flight, and for writes also asynchronous reads.
void check_generic(const void* p, size_t size_bytes, bool write, const std::source_location& at);
/// Of an asynchronous access to a cell with this knowledge: the cell's earlier accesses are ordered before it, those by
/// instructions with a fence between.
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

// --- shared_memory.cpp

/// Checks the 16 bytes of a cell against the accesses by instructions, and resets them if they are overwritten.
void check_granules(const unsigned char* p, const Asynchronous& access);

// --- phase_barriers.cpp

std::string described(const PhaseBarrier& barrier);
PhaseBarrier& barrier_at(uint64_t* words, const char* operation, const std::source_location& at);
/// The barrier is as if its thread initialised it now.
void initialise_again(const void* words);
/// Completes the phase if all arrivals and bytes are there.
void complete_phase(PhaseBarrier& barrier);

// --- tma.cpp

/// Completes the oldest load in flight. False: there is none.
bool land_next();

// --- warpgroup.cpp

/// The last of the group's 128 threads runs `action`, then all go on.
void meet_group(const char* operation, const std::source_location& at, const std::function<void()>& action);
void grant_registers();

}  // namespace slipstream::emulation
