// SPDX-License-Identifier: Apache-2.0
// The worker loop swaps whole batches of commands out of the queue, so that host and worker share the lock once a
// batch.

#include "engine/device/cpu/cpu_stream.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/delay_point.h"
#include "engine/base/philox.h"
#include "engine/device/link_note.h"

namespace slipstream::cpu {
namespace {

// This takes about 300 ns and bridges a hand-over between two running threads. Longer spins would take the core from
// compute.
constexpr int kSpins = 16;
// After that the thread yields its core, often to the very thread that it waits for. Sleeping and waking costs two more
// switches: 10,000 tasks on 4 streams with two predecessors each took 4.7 us per task without yields and 1.1 with them,
// a pure chain 36 and 3.6 (2 cores, tests/bench/scheduler_bench). A yield that no thread uses costs 0.3 us; one that a
// computing thread uses costs that thread nothing until its slice ends.
constexpr int kYields = 8;
// The time between two readings of the thread's usage. A reading costs up to 3 us, less than 0.1 % of this.
constexpr int64_t kLookNs = 4'000'000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

template <typename Ready>
bool soon(Ready ready) {
  for (int i = 0; i < kSpins + kYields; ++i) {
    if (ready()) return true;
    i < kSpins ? relax() : static_cast<void>(sched_yield());
  }
  return ready();
}

/// Asks the kernel (Linux 6.12 and later; needs no rights) for short slices: a waking thread with a shorter slice than
/// the running one's takes the core, and its work is short. Without this, a woken communication thread waits for the
/// end of the computing thread's slice, a millisecond or more, several times in every transfer. Older kernels refuse
/// the request, which does no harm.
void ask_for_short_slices() {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice_ns, deadline_ns, period_ns;
  } attributes{};  // struct sched_attr, version 0; the C library does not define it
  attributes.size = sizeof(attributes);
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  attributes.slice_ns = 100'000;  // the shortest slice that the kernel grants
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

void Progress::wait_for(uint64_t record) {
  if (soon([&] { return reached(record); })) return;
  std::unique_lock lock(mutex_);
  while (true) {
    // Publishes the awaited record before it checks again. advance_to() publishes progress before it reads wanted_, so
    // that one of the two sees the other.
    if (wanted_.load(std::memory_order_seq_cst) > record) wanted_.store(record, std::memory_order_seq_cst);
    if (reached(record)) return;
    changed_.wait(lock);
  }
}

void Progress::advance_to(uint64_t record) {
  done_.store(record, std::memory_order_seq_cst);
  if (wanted_.load(std::memory_order_seq_cst) > record) return;
  {
    std::lock_guard lock(mutex_);
    wanted_.store(kNoSleeper, std::memory_order_seq_cst);  // threads that still wait publish their record again
  }
  changed_.notify_all();
}

void Core::fail(std::exception_ptr error) {
  std::lock_guard lock(mutex);
  if (!first_error) first_error = std::move(error);
  failed.store(true, std::memory_order_release);
}

void Core::rethrow_if_failed() {
  if (!failed.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex);
  std::rethrow_exception(first_error);
}

uint64_t EventState::set_latest(Position position) {
  std::lock_guard lock(mutex_);
  latest_ = position;
  return ++generation_;
}

EventState::Position EventState::latest() const {
  std::lock_guard lock(mutex_);
  return latest_;
}

void EventState::complete(uint64_t generation, int64_t time_ns) {
  std::lock_guard lock(mutex_);
  if (generation < completed_generation_) return;  // recorded later on a faster stream
  completed_generation_ = generation;
  completed_ns_ = time_ns;
}

int64_t EventState::completed_ns() const {
  std::lock_guard lock(mutex_);
  return completed_ns_;
}

void CpuEvent::synchronize() {
  core_->host_waits.fetch_add(1, std::memory_order_relaxed);
  const EventState::Position position = state_->latest();
  if (position.progress) position.progress->wait_for(position.record);
  core_->rethrow_if_failed();
}

bool CpuEvent::query() const {
  const EventState::Position position = state_->latest();
  return !position.progress || position.progress->reached(position.record);
}

CpuStream::CpuStream(std::shared_ptr<Core> core, const StreamOptions& options)
    : core_(std::move(core)), name_(options.name), threads_(options.threads), high_priority_(options.high_priority) {
  {
    std::lock_guard lock(core_->mutex);
    progress_ = core_->progresses.emplace_back(std::make_unique<Progress>()).get();
  }
  worker_ = start_thread("stream " + name_, [this] { worker_main(); });
}

CpuStream::~CpuStream() {
  push(Command{.kind = Command::Kind::stop});
  worker_.join();
}

void CpuStream::push(const Command& command) {
  std::unique_lock lock(mutex_);
  push_locked(command, lock);
}

void CpuStream::push_locked(const Command& command, std::unique_lock<std::mutex>& lock) {
  queue_.push_back(command);
  has_commands_.store(true, std::memory_order_relaxed);
  const bool wake = std::exchange(asleep_, false);
  lock.unlock();
  if (wake) arrived_.notify_one();
}

void CpuStream::launch(const Work& work, const Frame& frame) {
  push(Command{.kind = Command::Kind::work, .work = &work, .frame = frame});
}

void CpuStream::record(Event& event) {
  EventState& state = static_cast<CpuEvent&>(event).state();
  state.retain();
  std::unique_lock lock(mutex_);
  const uint64_t record = ++records_;
  const uint64_t generation = state.set_latest({progress_, record});
  push_locked(Command{.kind = Command::Kind::record, .event = &state, .record = record, .tag = generation}, lock);
}

void CpuStream::wait(const Event& event, const Frame& frame) {
  const EventState::Position position = static_cast<const CpuEvent&>(event).state().latest();
  if (!position.progress || position.progress == progress_) return;  // its own records come earlier in any case
  push(Command{.kind = Command::Kind::wait,
               .progress = position.progress,
               .record = position.record,
               .tag = event.tag(),
               .frame = frame});
}

void CpuStream::synchronize() {
  CpuEvent event(core_, 0);
  record(event);
  event.synchronize();
}

void CpuStream::drain(std::vector<Span>& spans) {
  std::lock_guard lock(spans_mutex_);
  spans.insert(spans.end(), spans_.begin(), spans_.end());
  spans_.clear();
}

void CpuStream::worker_main() {
  if (high_priority_) ask_for_short_slices();
  usage_ = std::make_unique<ThreadUsage>();
  /// With the default of 50 us every short sleep would become a long one.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  try {
    pool_ = std::make_unique<ThreadPool>(threads_);
  } catch (...) {
    core_->fail(std::current_exception());
  }
  std::vector<Command> batch;
  while (!stopping_) {
    soon([&] { return has_commands_.load(std::memory_order_relaxed); });
    {
      std::unique_lock lock(mutex_);
      while (queue_.empty()) {
        asleep_ = true;
        arrived_.wait(lock);
      }
      asleep_ = false;
      batch.swap(queue_);
      has_commands_.store(false, std::memory_order_relaxed);
    }
    run_all(batch);
    batch.clear();
  }
  pool_.reset();
}

void CpuStream::run_all(std::vector<Command>& commands) {
  for (const Command& command : commands) switch (command.kind) {
      case Command::Kind::work:
        run_work(command);
        break;
      case Command::Kind::wait:
        run_wait(command);
        break;
      case Command::Kind::record:
        command.event->complete(command.tag, monotonic_ns());
        progress_->advance_to(command.record);
        command.event->release();
        break;
      case Command::Kind::stop:
        stopping_ = true;
        break;
    }
}

void CpuStream::run_work(const Command& command) {
  pause_before_work();
  if (may_fail_) fail_point("work", command.work->name);
  if (core_->failed.load(std::memory_order_acquire)) return;
  Span span{.kind = Span::Kind::work, .work = command.work, .item = command.frame.item, .step = command.frame.step};
  LaunchContext context{.kind = DeviceKind::cpu, .pool = pool_.get(), .frame = &command.frame};
  span.begin_ns = monotonic_ns();
  span.ready_before_ns = look_at(span.begin_ns).ready_ns;
  try {
    run_function(*command.work, context);
  } catch (...) {
    core_->fail(std::current_exception());
  }
  span.end_ns = monotonic_ns();
  span.link_ns = take_link_note_ns();
  const int64_t wall_ns = span.end_ns - span.begin_ns;
  const ThreadUsage::Part used = look_at(span.end_ns);
  span.ready_ns = std::min(used.ready_ns, wall_ns);
  if (wall_ns >= kLookNs && threads_ == 1) span.asleep_ns = std::max<int64_t>(0, wall_ns - span.ready_ns - used.ran_ns);
  add_span(span);
}

void CpuStream::run_function(const Work& work, LaunchContext& context) {
  if (delays_asked()) {
    busy_delay_point(name_, context.frame->step);
    busy_delay_point(name_ + "/" + work.name, context.frame->step);
  }
  work.fn(context);
}

ThreadUsage::Part CpuStream::look_at(int64_t now_ns) {
  if (now_ns - looked_ns_ < kLookNs) return {};
  looked_ns_ = now_ns;
  return usage_->look();
}

void CpuStream::run_wait(const Command& command) {
  if (command.progress->reached(command.record)) return;
  Span span{.kind = Span::Kind::wait, .awaited = command.tag, .item = command.frame.item, .step = command.frame.step};
  span.begin_ns = monotonic_ns();
  span.ready_before_ns = look_at(span.begin_ns).ready_ns;
  command.progress->wait_for(command.record);
  span.end_ns = monotonic_ns();
  span.ready_ns = std::min(look_at(span.end_ns).ready_ns, span.end_ns - span.begin_ns);
  add_span(span);
}

void CpuStream::pause_before_work() {
  const uint64_t count = works_++;
  const int64_t max_ns = core_->delay_max_ns.load(std::memory_order_acquire);
  if (max_ns <= 0) return;
  const Philox random(core_->delay_seed.load(std::memory_order_relaxed), name_);
  const int64_t pause_ns = static_cast<int64_t>(random.below(count, static_cast<uint64_t>(max_ns) + 1));
  const timespec pause{static_cast<time_t>(pause_ns / 1000000000), static_cast<long>(pause_ns % 1000000000)};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
}

void CpuStream::add_span(const Span& span) {
  std::lock_guard lock(spans_mutex_);
  spans_.push_back(span);
}

}  // namespace slipstream::cpu
