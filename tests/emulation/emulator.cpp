// SPDX-License-Identifier: Apache-2.0
// Fibers, barriers and warps.

#include "tests/emulation/async_machine.h"

#include <fmt/core.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

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
std::mutex machine;                     // one kernel at a time; under it m
thread_local bool runs_kernel = false;  // this thread, its fibers too
std::function<void(void*, std::function<void()>)>& streams() {
  static std::function<void(void*, std::function<void()>)> runs;
  return runs;
}

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
  throw Error(sentence(fmt::format("divergent {}: it waits at {} and {}", fiber.operation, file_of(fiber.at), why)));
}

void run_block() {
  m.done = m.at_barrier = 0;
  begin_shared();
  if (m.dynamic_bytes > 0) declare_shared(m.dynamic, m.dynamic_bytes);
  for (size_t w = 0; w * 32 < m.threads; ++w) {
    m.warps[w].lanes = static_cast<int>(std::min<size_t>(32, m.threads - w * 32));
    m.warps[w].arrived = 0;
    m.warps[w].differs = false;
    m.warps[w].generation = 0;
    m.warps[w].ordered_at = m.time;
  }
  for (size_t t = 0; t < m.threads; ++t) prepare(t);
  if (m.clocked) begin_clocks();
  while (m.done < m.threads) {
    bool progress = false;
    for (size_t i = 0; i < m.threads; ++i) {
      const size_t t = m.descending ? m.threads - 1 - i : i;
      if (m.fibers[t].state != State::ready) continue;
      progress = true;
      resume(t);
      if (m.error) std::rethrow_exception(std::exchange(m.error, nullptr));
    }
    if (progress || (m.clocked && land_next())) continue;
    if (m.clocked) report_deadlock();
    report_divergence();
  }
  if (m.clocked) end_block();
}

struct sigaction before_run;  // the handler of faults while no kernel runs

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
        fail(fmt::format("divergent __syncthreads: it waits at {} and {} at {}", file_of(at), place_of(t),
                         file_of(m.fibers[t].at)));
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
    fail(fmt::format("{} at {} with a mask of part of the warp: {:#x}", operation, file_of(at), mask));
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
      fail(fmt::format("divergent {}: it waits at {} and {} at {} ({})", operation, file_of(at), place_of(t),
                       file_of(m.fibers[t].at), m.fibers[t].operation));
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

void fail(const std::string& what) { throw Error(sentence(what)); }
void fail_quietly(const std::string& what) {
  m.error = std::make_exception_ptr(Error(sentence(what)));
  to_scheduler();
}
bool in_kernel() { return runs_kernel; }
static int capability = 80;
void set_compute_capability(int value) { capability = value; }
int compute_capability() { return capability; }
size_t shared_memory_bytes() { return capability >= 90 ? kSharedMemoryBytes90 : kSharedMemoryBytes; }
void set_descending(bool descending) { m.descending = descending; }
int64_t launches() { return m.launches; }
int lane() { return static_cast<int>(m.current % 32); }
int warp_lanes() { return m.warps[m.current / 32].lanes; }
unsigned char* dynamic_shared() { return m.dynamic; }

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
  if (m.threads == 0 || m.threads > kThreadsMax || size_t{grid.x} * grid.y * grid.z == 0 || grid.y > 65535 ||
      grid.z > 65535)
    throw Error(fmt::format("[emulation] launch at {}: a grid of {} x {} x {} blocks of {} threads cannot run.",
                            file_of(site), grid.x, grid.y, grid.z, m.threads));
  if (shared_bytes > shared_memory_bytes())
    throw Error(fmt::format("[emulation] launch at {}: {} bytes of shared memory, a block has at most {}.",
                            file_of(site), shared_bytes, shared_memory_bytes()));
  if (!m.stacks) {
    void* stacks = mmap(nullptr, kThreadsMax * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) throw Error("[emulation] no memory for the stacks of the threads.");
    m.stacks = static_cast<unsigned char*>(stacks);
  }
  struct sigaction action = {}, old_segv, old_bus;
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &old_segv);
  before_run = old_segv;
  sigaction(SIGBUS, &action, &old_bus);
  m.body = &body;
  see_memories();
  m.dynamic_bytes = (shared_bytes + 15) / 16 * 16;
  m.dynamic_storage.resize(m.dynamic_bytes + 1023);
  m.dynamic = m.dynamic_storage.data() + (1024 - reinterpret_cast<uintptr_t>(m.dynamic_storage.data()) % 1024) % 1024;
  if (std::exchange(m.clocked, false)) pass_clocks();
  if (m.time > UINT32_MAX / 4) {
    std::fill(m.shadow.begin(), m.shadow.end(), Granule{});
    m.time = 0;
  }
  begin_handover();
  blockDim = {block.x, block.y, block.z};
  gridDim = {grid.x, grid.y, grid.z};
  for (size_t t = 0; t < m.threads; ++t) m.fibers[t].index = index_of(t);
  ++m.launches;
  elapse(static_cast<int64_t>(m.threads * grid.x * grid.y * grid.z));
  const auto finish = [&] {
    runs_kernel = false;
    sigaction(SIGSEGV, &old_segv, nullptr);
    sigaction(SIGBUS, &old_bus, nullptr);
  };
  if (sigsetjmp(m.fault, 1)) {
    finish();
    throw Error(sentence(describe(m.fault_address)));
  }
  runs_kernel = true;
  try {
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
      for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) run_block();
  } catch (...) {
    finish();
    throw;
  }
  finish();
}

}  // namespace slipstream::emulation
