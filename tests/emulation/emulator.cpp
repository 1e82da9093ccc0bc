// SPDX-License-Identifier: Apache-2.0
// Fibers, barriers and warps.

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "tests/emulation/async_machine.h"

#include "tests/emulation/cuda_runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

#if defined(__x86_64__)
// ucontext saves the signal mask with two system calls a switch; the callee-saved registers are all that a call needs.
extern "C" void slip_fiber_switch(void** save, void* load);
asm(R"(
.text
.globl slip_fiber_switch
.type slip_fiber_switch,@function
slip_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size slip_fiber_switch,.-slip_fiber_switch
)");
#endif

namespace slipstream::emulation {

Machine m;

namespace {

// No power of two, so that the same frame of different threads falls into different sets of the caches.
constexpr size_t kStackBytes = 132 * 1024 + 320;

Size3 index_of(size_t thread) {
  const unsigned t = static_cast<unsigned>(thread);
  return {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
}
}  // namespace

std::string place_of(size_t thread) {
  const Size3 i = index_of(thread);
  return fmt::format("thread ({}, {}, {})", i.x, i.y, i.z);
}
std::string file_of(const std::source_location& at) {
  const std::string path = at.file_name();
  for (const char* root : {"kernels/", "tests/"})
    if (const size_t found = path.rfind(root); found != std::string::npos)
      return fmt::format("{}:{}", path.substr(found), at.line());
  return fmt::format("{}:{}", path, at.line());
}

std::string sentence(const std::string& what) {
  return fmt::format("[emulation] kernel {}{}launched at {}, block ({}, {}, {}), {}: {}.", m.kernel,
                     m.kernel.empty() ? "" : " ", file_of(m.site), blockIdx.x, blockIdx.y, blockIdx.z,
                     place_of(m.current), what);
}

void to_scheduler() {
  Fiber& fiber = m.fibers[m.current];
#if defined(__x86_64__)
  slip_fiber_switch(&fiber.stack_pointer, m.scheduler);
#else
  swapcontext(&fiber.context, &m.scheduler);
#endif
}

void wait_at(State state, std::string_view operation, const std::source_location& at) {
  Fiber& fiber = m.fibers[m.current];
  fiber.state = state;
  fiber.operation = operation;
  fiber.at = at;
  to_scheduler();
}

namespace {

void entry() {
  try {
    (*m.body)();
    run_late();
    if (m.fibers[m.current].may_overlap)
      fail(source::kEarlyLaunch, "it returns without a wait for the kernels before this one, so later ones may begin");
    if (m.clocked) end_thread();
  } catch (...) {
    m.error = std::current_exception();
  }
  m.fibers[m.current].state = State::done;
  ++m.done;
  to_scheduler();
  std::abort();
}

void prepare(size_t thread) {
  Fiber& fiber = m.fibers[thread];
  fiber.state = State::ready;
  fiber.index = index_of(thread);
  fiber.may_overlap = m.begins_early;
  fiber.copies.clear();
  fiber.landed.clear();
  fiber.committed = 0;
  fiber.last = {};
  fiber.late = nullptr;
  fiber.late_wait = false;
  unsigned char* top = m.stacks + (thread + 1) * kStackBytes;
#if defined(__x86_64__)
  void** stack = reinterpret_cast<void**>(top) - 1;  // the entry sees a stack 8 off 16, as after a call
  *stack = nullptr;
  *--stack = reinterpret_cast<void*>(&entry);
  for (int i = 0; i < 6; ++i) *--stack = nullptr;
  fiber.stack_pointer = stack;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = top - kStackBytes;
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
#endif
}

void resume(size_t thread) {
  m.current = thread;
  const Size3& i = m.fibers[thread].index;
  threadIdx = {i.x, i.y, i.z};
#if defined(__x86_64__)
  slip_fiber_switch(&m.scheduler, m.fibers[thread].stack_pointer);
#else
  swapcontext(&m.scheduler, &m.fibers[thread].context);
#endif
}

[[noreturn]] void report_divergence() {
  size_t waits = 0, other = 0;
  while (m.fibers[waits].state == State::done) ++waits;
  m.current = waits;
  const Fiber& fiber = m.fibers[waits];
  const auto differs = [&](const Fiber& f) {
    return f.state == State::done || f.operation != fiber.operation || f.at.line() != fiber.at.line();
  };
  while (other < m.threads && !differs(m.fibers[other])) ++other;
  std::string why = "a lane of its warp never arrives";
  if (other < m.threads) {
    const Fiber& f = m.fibers[other];
    why = f.state == State::done ? place_of(other) + " has returned"
                                 : fmt::format("{} waits at {} ({})", place_of(other), file_of(f.at), f.operation);
  }
  throw Error(source::kSyncthreads,
              sentence(fmt::format("divergent {}: it waits at {} and {}", fiber.operation, file_of(fiber.at), why)));
}

bool can_run(Fiber& fiber, size_t thread, bool& waits_for_word) {
  if (fiber.state == State::at_word) {
    const AsyncThread& waiting = a.of[thread];
    if (*waiting.word == waiting.value) return true;
    waits_for_word = true;
  }
  return fiber.state == State::ready;
}

}  // namespace

void prepare_fibers() {
  if (m.stacks_bytes < m.threads * kStackBytes) {
    if (m.stacks) munmap(m.stacks, m.stacks_bytes);
    m.stacks_bytes = m.threads * kStackBytes;
    void* stacks =
        mmap(nullptr, m.stacks_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) throw Error(source::kEmulator, "[emulation] no memory for the stacks of the threads.");
    m.stacks = static_cast<unsigned char*>(stacks);
  }
  if (m.fibers.size() < m.threads) m.fibers.resize(m.threads);
  for (size_t t = 0; t < m.threads; ++t) prepare(t);
}

bool run_round() {
  bool progress = false, waits_for_word = false;
  for (size_t i = 0; i < m.threads; ++i) {
    const size_t t = m.descending ? m.threads - 1 - i : i;
    if (!can_run(m.fibers[t], t, waits_for_word)) continue;
    progress = true;
    resume(t);
    if (m.error) std::rethrow_exception(std::exchange(m.error, nullptr));
  }
  if (progress || (m.clocked && land_next())) return true;
  if (waits_for_word) return false;
  if (m.clocked) report_deadlock("");
  report_divergence();
}

void pass_block_barrier(const std::source_location& at) {
  Fiber& fiber = m.fibers[m.current];
  fiber.state = State::at_block_barrier;
  fiber.at = at;
  fiber.operation = "__syncthreads";
  if (++m.at_barrier < m.threads) {
    to_scheduler();
  } else {
    for (size_t t = 0; t < m.threads; ++t)
      if (m.fibers[t].at.line() != at.line())
        fail(source::kSyncthreads, fmt::format("divergent __syncthreads: it waits at {} and {} at {}", file_of(at),
                                               place_of(t), file_of(m.fibers[t].at)));
    for (size_t t = 0; t < m.threads; ++t) m.fibers[t].state = State::ready;
    m.at_barrier = 0;
    m.block_ordered_at = ++m.time;
    if (m.clocked) meet_clocks(0, m.threads);
  }
  fiber.last = {};
  if (std::exchange(fiber.late_wait, false)) wait_now(fiber, fiber.late_pending);
}

const Lane* meet_warp(const char* operation, unsigned mask, const void* value, size_t size_bytes, bool orders_memory,
                      const std::source_location& at) {
  const size_t first = m.current / 32 * 32;
  Warp& warp = m.warps[m.current / 32];
  const unsigned present = warp.lanes == 32 ? 0xffffffffu : (1u << warp.lanes) - 1;
  if ((mask & present) != present)
    fail(source::kEmulator,
         fmt::format("{} at {} with a mask of part of the warp: {:#x}", operation, file_of(at), mask));
  Fiber& fiber = m.fibers[m.current];
  fiber.state = State::at_warp_operation;
  fiber.at = at;
  fiber.operation = operation;
  if (warp.arrived == 0)
    warp.first = m.current;
  else if (const Fiber& other = m.fibers[warp.first];
           other.at.line() != at.line() || other.operation != fiber.operation)
    warp.differs = true;
  if (orders_memory) fiber.last = {};
  Lane* slots = warp.slots[warp.generation & 1];
  if (size_bytes > 0) std::memcpy(slots[m.current - first].bytes, value, size_bytes);
  if (++warp.arrived < warp.lanes) {
    to_scheduler();
    return slots;
  }
  for (size_t t = first; warp.differs && t < first + static_cast<size_t>(warp.lanes); ++t)
    if (m.fibers[t].at.line() != at.line() || m.fibers[t].operation != operation)
      fail(source::kShuffle, fmt::format("divergent {}: it waits at {} and {} at {} ({})", operation, file_of(at),
                                         place_of(t), file_of(m.fibers[t].at), m.fibers[t].operation));
  for (size_t t = first; t < first + static_cast<size_t>(warp.lanes); ++t) m.fibers[t].state = State::ready;
  warp.arrived = 0;
  ++warp.generation;
  if (orders_memory) {
    warp.ordered_at = ++m.time;
    if (m.clocked) meet_clocks(first, static_cast<size_t>(warp.lanes));
  }
  return slots;
}
void pass_warp_barrier(unsigned mask, const std::source_location& at) {
  meet_warp("__syncwarp", mask, nullptr, 0, true, at);
}

void wait_for_earlier_kernels(const char* operation, const std::source_location& at) {
  if (change_of(operation, at) == Change::none) m.fibers[m.current].may_overlap = false;
}
void require_earlier_kernels() {
  if (m.fibers[m.current].may_overlap)
    fail_quietly(source::kEarlyLaunch, "an access to global memory before the wait for the kernels before this one");
}

void fail(const Source& source, const std::string& what) { throw Error(source, sentence(what)); }
void fail_quietly(const Source& source, const std::string& what) {
  m.error = std::make_exception_ptr(Error(source, sentence(what)));
  to_scheduler();
}
static int capability = 80;
void set_compute_capability(int value) { capability = value; }
int compute_capability() { return capability; }
size_t shared_memory_bytes() { return capability >= 90 ? kSharedMemoryBytes90 : kSharedMemoryBytes; }
void set_descending(bool descending) { m.descending = descending; }
int64_t launches() { return m.launches; }
int lane() { return static_cast<int>(m.current % 32); }
int warp_lanes() { return m.warps[m.current / 32].lanes; }
unsigned char* dynamic_shared() { return m.dynamic; }

}  // namespace slipstream::emulation
