// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of the emulated device, between grid.cpp (blocks), emulator.cpp (fibers and barriers), shared_memory.cpp
// (the shadow of shared memory and copies in flight), mutations.cpp (changed synchronizations) and the asynchronous
// parts (async_machine.h).

#include <setjmp.h>

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "tests/emulation/emulator.h"

namespace slipstream::emulation {

constexpr size_t kThreadsMax = 1024;

enum class State : uint8_t {
  ready,
  at_block_barrier,
  at_warp_operation,
  at_phase,  // of a barrier in shared memory
  at_named_barrier,
  at_group_operation,  // of a warpgroup
  at_registers,        // which other warps must give up
  at_word,             // of global memory, which another block must write
  done
};

/// An asynchronous copy that its thread has not waited for.
struct Copy {
  unsigned char* to;
  const void* from;
  bool valid;
  uint16_t site;
  size_t group;
};
/// The last access of a thread to shared memory since its last barrier.
struct Access {
  enum class Kind : uint8_t { none, read, write, landing, init, products, stores } kind = Kind::none;
  const void* p = nullptr;
  size_t size_bytes = 0;
  std::source_location at;
};

struct alignas(64) Fiber {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  State state = State::ready;
  Size3 index;  // threadIdx
  std::source_location at;
  std::string_view operation;
  bool may_overlap = false;  // has not waited for the kernels before this one
  // Asynchronous copies in flight, and those that the last wait completed.
  std::vector<Copy> copies, landed;
  size_t committed = 0;  // groups
  Access last;
  // Of a mutation: a synchronization moves down past `accesses_before` more accesses, a wait of cp.async past the next
  // barrier.
  std::function<void()> late;
  bool late_is_of_warp = false;
  int accesses_before = 0;
  bool late_wait = false;
  size_t late_pending = 0;
};

/// `ordered_at`: the time of the last barrier of the warp or of the block.
struct Warp {
  int lanes = 0, arrived = 0;
  size_t first = 0;      // thread that has arrived
  bool differs = false;  // another one is at another operation or line
  uint32_t generation = 0, ordered_at = 0;
  Lane slots[2][32];
};

/// Which thread accessed a granule, at which line (Sites) and when: by the machine's time, which advances at every
/// barrier, or by the thread's own clock where clocks run (async_machine.h). One word, as there are four of them for
/// every two bytes of shared memory. `in_flight`: the access is a copy that its thread has not waited for.
class Touch {
 public:
  Touch() = default;
  Touch(size_t thread, uint16_t site, uint32_t when, bool in_flight = false)
      : word_(uint64_t{when} << 32 | uint64_t{in_flight} << 28 | uint64_t{site} << 16 | (thread + 1)) {}
  /// An access that is ordered before all others.
  static Touch of_no_thread(uint32_t when) { return Touch(SIZE_MAX, 0, when); }
  bool of_a_thread() const { return (word_ & 0xffff) != 0; }
  size_t thread() const { return (word_ & 0xffff) - 1; }
  uint16_t site() const { return word_ >> 16 & 0xfff; }
  bool in_flight() const { return word_ >> 28 & 1; }
  uint32_t when() const { return static_cast<uint32_t>(word_ >> 32); }

 private:
  uint64_t word_ = 0;
};
struct alignas(32) Granule {
  Touch writer, last_reader, other_reader, other_warp_reader;
};
struct Region {
  unsigned char* base;
  size_t size_bytes, first_granule;
};

/// Source lines by number. 0 is a line that found no place.
struct Sites {
  static constexpr size_t kMost = 4096, kProbes = 64;  // Touch has 12 bits for a line
  std::array<std::source_location, kMost> at;

  uint16_t of(const std::source_location& where) {
    const size_t hash = reinterpret_cast<uintptr_t>(where.file_name()) / 16 + 31 * where.line();
    for (size_t i = 0; i < kProbes; ++i) {
      const size_t slot = 1 + (hash + i) % (kMost - 1);
      if (at[slot].line() == 0) at[slot] = where;
      if (at[slot].line() == where.line() && at[slot].file_name() == where.file_name())
        return static_cast<uint16_t>(slot);
    }
    return 0;
  }
};

/// A place for a block on the device, with the block that runs there and what remains of earlier ones. References into
/// the vectors live on while the blocks take turns.
struct Place {
  Size3 index;         // blockIdx
  uint64_t block = 0;  // its number, of all so far
  std::vector<Fiber> fibers;
  unsigned char* stacks = nullptr;
  size_t stacks_bytes = 0;
  std::vector<Warp> warps;
  std::vector<Region> regions;
  std::vector<Granule> shadow;  // of all regions of the block; times before block_began are of earlier blocks
  size_t shadow_used = 0;
  std::vector<unsigned char> static_contents;  // of static shared arrays while another block runs
  std::vector<unsigned char> dynamic_storage;
  unsigned char* dynamic = nullptr;  // in it, as far from a multiple of 1024 as dynamic_base()
  size_t at_barrier = 0, done = 0;
  // Of barriers and blocks so far; that of the running block's beginning, and of its last barrier.
  uint32_t time = 0, block_began = 0, block_ordered_at = 0;
  bool clocked = false;  // the block's threads have clocks (async_machine.h)
};

/// The device, with the place whose block is running.
struct Machine : Place {
  Sites sites;
  size_t dynamic_bytes = 0;
  const std::function<void()>* body = nullptr;
  std::source_location site;
  std::string kernel;
  size_t threads = 0, current = 0;
  bool descending = false;
  bool begins_early = false;    // the kernel may begin before those before it in its stream have ended
  bool clocked_kernel = false;  // it has reached an asynchronous operation
  uint64_t blocks = 0;          // begun so far
  std::exception_ptr error;
  int64_t launches = 0;
#if defined(__x86_64__)
  void* scheduler = nullptr;
#else
  ucontext_t scheduler;
#endif
  sigjmp_buf fault;
  void* fault_address = nullptr;
};
extern Machine m;

// --- emulator.cpp

/// Memory for the fibers of the running place, which begin at the kernel.
void prepare_fibers();
/// Resumes each thread that can run, once. False: all wait for words of global memory.
bool run_round();

/// "kernels/x/x.cu:12".
std::string file_of(const std::source_location& at);
/// "thread (1, 0, 0)".
std::string place_of(size_t thread);
/// The barriers themselves, without mutations.
void pass_block_barrier(const std::source_location& at);
void pass_warp_barrier(unsigned mask, const std::source_location& at);
/// Runs other threads until this one is ready again.
void to_scheduler();
/// Waits in `state` at a place.
void wait_at(State state, std::string_view operation, const std::source_location& at);
/// The error of the running thread as text; fail() throws it.
std::string sentence(const std::string& what);
/// As warp_exchange. `orders_memory`: shared accesses before and after are ordered within the warp.
const Lane* meet_warp(const char* operation, unsigned mask, const void* value, size_t size_bytes, bool orders_memory,
                      const std::source_location& at);

// --- shared_memory.cpp

/// Forgets the shared memory of the block before.
void begin_shared();
/// Checks an access by the running thread, without mutations.
void read_now(const void* p, size_t size_bytes, const std::source_location& at);
void write_now(const void* p, size_t size_bytes, const std::source_location& at, bool in_flight = false);
/// Completes the committed copies of a thread but the last `pending` groups.
void wait_now(Fiber& fiber, size_t pending);
/// Performs the last access of this thread again, as if it came after the barrier that has just passed.
void repeat(const Fiber& fiber, const Access& last);

// --- mutations.cpp

/// Changes of one synchronization in a kernel's text:
///   - removed;
///   - weakened: a barrier of the block or of some warps becomes one of the warp, a wait leaves one more group in
///     flight, an arrival that expects bytes expects none;
///   - early: a barrier, an arrival, a release or a fence moves up past the last access of every thread to shared
///     memory, or past the wait before it;
///   - late: a barrier, a fence, or a wait for a phase, for products or for other blocks moves down past the next two
///     accesses of every thread, a wait of cp.async past the next barrier of the block.
/// The environment selects it: SLIPSTREAM_MUTATION="CHANGE KERNEL OPERATION FILE:LINE". SLIPSTREAM_SYNCHRONIZATIONS
/// names a file to which every synchronization that runs is appended once, as "KERNEL OPERATION FILE:LINE", and once
/// with " behind" if its thread has accessed shared memory or waited since its last barrier.
enum class Change : uint8_t { none, removed, weakened, early, late };
Change change_of(const char* operation, const std::source_location& at);
/// Before an access of the running thread, and at its end: a synchronization that moves down may be due.
void run_late();
inline void before_access(Fiber& fiber) {
  if (fiber.late && fiber.accesses_before-- == 0) run_late();
}
/// Runs a synchronization of the running thread as if it came before the thread's last access.
void pass_early(const std::function<void()>& pass);
/// Moves a synchronization of the running thread down past its next two accesses.
void move_down(std::function<void()> synchronization, bool of_warp = false);

}  // namespace slipstream::emulation
