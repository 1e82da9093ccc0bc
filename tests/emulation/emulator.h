// SPDX-License-Identifier: Apache-2.0
#pragma once
// A CUDA device on the host: grids of blocks of fibers in a fixed order, with the hardware's rules checked; each rule
// has its source (sources.h).
//
// One fiber per CUDA thread. As many blocks as fit on the device (resident_blocks) take turns; in its turn, each thread
// of a block, in ascending (or descending) order, runs to its next wait. These are errors, which name kernel, launch
// site, block and thread:
//   - a global access outside its DeviceMemory, by a byte or by many: the compiler calls access() before every load and
//     store of a kernel (meson.build). What no compiler saw, such as a memcpy, is found in the protected pages around
//     the memory, or by DeviceMemory::intact if it wrote beside them;
//   - a 16-byte access, an ldmatrix row or a cp.async that is not aligned to 16 bytes;
//   - of a kernel of the engine, which may begin before the kernels before it in its stream have ended
//     (kernels/cuda/launch.h): an access to global memory before the thread waits for them, and its return without a
//     wait, because kernels after this one would then not wait for those before it;
//   - a barrier or warp operation that not all threads of the block or warp reach on the same line, or that one of them
//   has
//     left by returning;
//   - through Shared<T>, load_16, store_16, ldmatrix and cp.async: a shared access outside its array, a read of bytes
//   that no
//     one wrote in this block, and two accesses of different threads, one of them a write, with no barrier between
//     (__syncthreads for the block, __syncwarp for a warp). The error names both lines;
//   - an access to bytes that a cp.async is still writing: from its issue to the wait of its thread. The issue is a
//     write too, so no other thread may have read or written the bytes since the last barrier; after the wait other
//     threads need a barrier.
//
// With compute capability 9.0 (set_compute_capability) kernels have the instructions of hopper.h. Threads of a kernel
// that uses them have clocks (async_machine.h), and these are errors too:
//   - a barrier in shared memory without barrier_init, before threads or TMA can see it, with overwritten words, with
//     more arrivals or bytes than its phase expects, or whose next phase completes before a waiting thread has seen the
//     last; threads that wait forever (the error names all their lines);
//   - an access to bytes that TMA or wgmma is still reading or writing, and one that no barrier orders before or after
//     the access of another thread; an asynchronous read of bytes that instructions wrote without a fence_async since;
//   - a tensor, box or address that TMA does not take, and an operand of wgmma outside dynamic shared memory;
//   - an accumulator or A fragment that instructions access while wgmma uses it, or without the wgmma_fence between;
//   - warpgroup instructions that not all 128 threads reach on the same line, or with different operands;
//   - an access by a vector to global memory that the kernel has written, without a wait_until for a store_release that
//     knew of the write, in kernels that call store_release;
//   - a wait_until for a word that no resident block writes any more;
//   - warpgroups that wait for more registers than their block was launched with.
//
// A barrier, a wait or a commit can be removed, weakened or moved at run time (machine.h), so that tests show which of
// them are needed (mutate_barriers.py).
// Not seen: other races on global memory, between blocks too; shared memory through a raw pointer; of more than three
// readers of one location between two barriers only the last three kinds are kept: the last, the last other thread, and
// the last of another warp (with clocks: of another warpgroup).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/emulation/sources.h"

namespace slipstream::emulation {

/// The text of a violated rule and its source.
struct Error : std::runtime_error {
  Error(const Source& source, const std::string& text) : std::runtime_error(text + " [" + source.text + "]") {}
};

struct Size3 {
  unsigned x = 1, y = 1, z = 1;
};

/// Blocks. Runs `body` for every thread of the grid; errors name `kernel`. Throws: Error.
void run(Size3 grid, Size3 block, size_t shared_bytes, const std::function<void()>& body,
         const std::source_location& site, const std::string& kernel = "");

/// Passes a command of `stream` (a kernel, a memset, a product) to the runner of streams. By default it runs at once,
/// in the calling thread. Kernels run one at a time on any thread.
void enqueue(void* stream, std::function<void()> command);
void set_streams(std::function<void(void* stream, std::function<void()> command)> streams);
/// Blocks until all passed commands have run. Memory is freed after that, as cudaFree does.
void wait_for_streams();
void set_wait_for_streams(std::function<void()> wait);

/// Shared memory of a block: that of the smallest GPUs, compute capability 8.6, 8.9 and 12.0.
constexpr size_t kSharedMemoryBytes = 99 * 1024;
/// The same of compute capability 9.0.
constexpr size_t kSharedMemoryBytes90 = 227 * 1024;
/// The address at which dynamic shared memory begins: 1024, or another multiple of 16 that a test sets.
uint32_t dynamic_base();
void set_dynamic_base(uint32_t address);
/// Selects the emulated GPU: 90 has the instructions of hopper.h and their shared memory, 80 (the default) has neither.
void set_compute_capability(int capability);
int compute_capability();
size_t shared_memory_bytes();

/// Registers that each thread of a block of `threads` has at its launch: as many as a compiler can give to a kernel
/// with
/// __launch_bounds__(threads, 1), or those that a test sets for every kernel (0: none), in the device's units of 8.
int launch_registers(size_t threads);
void set_compiled_registers(int registers);

/// Whether kernels of tests are held to the wait for earlier kernels, too. Those of kernels/ always are.
void set_begins_early(bool begins_early);

/// Few, so that persistent blocks of small tests have several items.
constexpr int kMultiprocessors = 2;
/// Blocks that run at the same time, by their threads, registers and dynamic shared memory; those of a kernel that
/// declares no number of blocks in its launch bounds. Others begin when one of them ends. Source: CUDA C++ Programming
/// Guide, "Technical Specifications per Compute Capability" (8.6 or 9.0) and "Shared Memory" of both, which reserves 1
/// KB of each block's; registers by warps, in units of 256.
int resident_blocks(size_t threads, size_t shared_bytes);

/// Order of the threads between two barriers, and of the blocks of a grid. Blocks begin from the first one on in
/// ascending order, as they do on a card, which no manual promises. Results of a correct kernel do not change.
void set_descending(bool descending);
/// Kernels run so far.
int64_t launches();
/// Virtual time of the device: a kernel takes 1 ns per thread, a product the time of its algorithm.
void elapse(int64_t ns);
int64_t elapsed_ns();

// --- called by device code, from a fiber

[[noreturn]] void fail(const Source& source, const std::string& what);
/// The same where the compiler does not expect an exception: the thread never continues.
void fail_quietly(const Source& source, const std::string& what);
/// Does this thread run a kernel?
bool in_kernel();
void block_barrier(const std::source_location& at);
void warp_barrier(unsigned mask, const std::source_location& at);

constexpr size_t kSlotBytes = 64;
struct Lane {
  alignas(8) unsigned char bytes[kSlotBytes];
};
/// Waits until every lane of the warp has deposited `size_bytes` of `value` at the same place; then all of them, by
/// lane.
const Lane* warp_exchange(const char* operation, unsigned mask, const void* value, size_t size_bytes,
                          const std::source_location& at);
int lane();
int warp_lanes();

/// Dynamic shared memory of the running block.
unsigned char* dynamic_shared();
/// A static shared array of the running block: forgets its contents of the block before.
void declare_shared(void* base, size_t size_bytes);
/// True if `p` lies in shared memory of the running block.
bool is_shared(const void* p);
void shared_read(const void* p, size_t size_bytes, const std::source_location& at);
void shared_write(const void* p, size_t size_bytes, const std::source_location& at);

/// Starts a copy of 16 bytes to shared memory, of zeros unless `valid`. The bytes change at the wait.
void copy_async(void* to, const void* from, bool valid, const std::source_location& at);
/// Closes the group of the copies that this thread has started since the last commit.
void copy_commit(const std::source_location& at);
/// Completes all committed groups of this thread but the last `pending`.
void copy_wait(size_t pending, const std::source_location& at);

/// From here on this thread may access global memory: all kernels before this one in its stream have ended (grid.cpp).
void wait_for_earlier_kernels(const char* operation, const std::source_location& at);

/// Hands what this thread knows to have been written to the threads that wait for `value` (handover.cpp).
void store_release(uint32_t* p, uint32_t value, const std::source_location& at);
/// Waits until another block has written `value`; an error if all resident blocks wait.
void wait_until(const uint32_t* p, uint32_t value, const std::source_location& at);

/// For code compiled with `accesses_are_calls` (meson.build), before every load and store.
void access(const void* p, size_t size_bytes);

/// Checks an access of a vector: alignment, and the rules of shared memory, or those of memory that blocks hand over.
void vector_access(const void* p, size_t size_bytes, bool write, const std::source_location& at);

// --- called by tests

/// While it lives, the emulated GPU has this compute capability. A card keeps its own.
class Capability {
 public:
  explicit Capability(int capability) { set_compute_capability(capability); }
  ~Capability() { set_compute_capability(80); }
  Capability(const Capability&) = delete;
  Capability& operator=(const Capability&) = delete;
};

/// While it lives, dynamic shared memory begins at this address.
class DynamicBase {
 public:
  explicit DynamicBase(uint32_t address) { set_dynamic_base(address); }
  ~DynamicBase() { set_dynamic_base(1024); }
  DynamicBase(const DynamicBase&) = delete;
  DynamicBase& operator=(const DynamicBase&) = delete;
};

/// While it lives, every kernel is as if compiled to be launched with this number of registers a thread.
class CompiledRegisters {
 public:
  explicit CompiledRegisters(int registers) { set_compiled_registers(registers); }
  ~CompiledRegisters() { set_compiled_registers(0); }
  CompiledRegisters(const CompiledRegisters&) = delete;
  CompiledRegisters& operator=(const CompiledRegisters&) = delete;
};

/// While it lives, kernels of tests may begin early, too.
class BeginsEarly {
 public:
  BeginsEarly() { set_begins_early(true); }
  ~BeginsEarly() { set_begins_early(false); }
  BeginsEarly(const BeginsEarly&) = delete;
  BeginsEarly& operator=(const BeginsEarly&) = delete;
};

/// Memory of the emulated device, filled with ones (NaN in both float types), between protected pages. It begins
/// `shift_bytes` after a multiple of 16.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t size_bytes, std::string name = "memory", size_t shift_bytes = 0);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  unsigned char* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  const std::string& name() const { return name_; }
  /// Nothing was written between the end and the protected page, nor before the beginning.
  bool intact() const;
  /// Is `address` between the outer ends of the protected pages?
  bool protects(const void* address) const;
  bool contains(const void* p, size_t size_bytes) const { return p >= data_ && at(p) + size_bytes <= size_bytes_; }
  /// The offset of `address`.
  size_t at(const void* address) const {
    return static_cast<size_t>(static_cast<const unsigned char*>(address) - data_);
  }

 private:
  std::string name_;
  size_t size_bytes_;
  unsigned char* pages_;
  size_t pages_bytes_;
  unsigned char* data_;
};

// --- between emulator.cpp and memory.cpp

/// From now on kernels may access the memory that exists now.
void see_memories();
/// Refuses an access to global memory before the running thread has waited for the kernels before this one.
void require_earlier_kernels();
/// The memory whose protected pages contain `address`, or null.
const DeviceMemory* memory_around(const void* address);
/// The error of an access to it.
std::string describe(const void* address);

}  // namespace slipstream::emulation
