// SPDX-License-Identifier: Apache-2.0
// There is one word per stream, which is 0 while the thread runs a work, and then 1. A kernel of one thread waits for
// it.

#include "trainer/runtime/rank/host_works.h"

#include <atomic>
#include <limits>
#include <utility>

#include "engine/base/parallel.h"
#include "kernels/hold/hold.h"

namespace slipstream::runtime {
namespace {

uint32_t* word_of(Allocation& flag) { return reinterpret_cast<uint32_t*>(flag.data()); }

}  // namespace

HostWorks::HostWorks(const std::string& stream, Device& device)
    : flag_(device.allocate_host(sizeof(uint32_t), "flag of stream " + stream)) {
  thread_ = start_thread("works of the host on stream " + stream, [this] { run_all(); });
}

HostWorks::~HostWorks() {
  push({});
  thread_.join();
}

Work HostWorks::on_stream(Work work) {
  auto fn = std::make_shared<const std::function<void(LaunchContext&)>>(std::move(work.fn));
  work.fn = [host = shared_from_this(), fn = std::move(fn)](LaunchContext& context) {
    host->rethrow_if_failed();
    uint32_t* const word = word_of(*host->flag_);
    context.on_host([host = host.get(), word, task = Task{fn, *context.frame}] {
      std::atomic_ref(*word).store(0);
      host->push(task);
    });
    // The wait has no limit, because a transfer that never ends has a limit of its own, after which the word is
    // written, too.
    kernels::await_flag(context, {.flag = word, .value = 1, .limit_ns = std::numeric_limits<int64_t>::max()});
  };
  return work;
}

void HostWorks::push(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  arrived_.notify_one();
}

void HostWorks::run_all() {
  ThreadPool pool(1);
  while (true) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !tasks_.empty(); });
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    if (!task.fn) return;
    const bool skips = error_ != nullptr;
    lock.unlock();
    LaunchContext context{.kind = DeviceKind::cpu, .pool = &pool, .frame = &task.frame};
    try {
      if (!skips) (*task.fn)(context);
    } catch (...) {
      lock.lock();
      error_ = std::current_exception();
    }
    std::atomic_ref(*word_of(*flag_)).store(1);
  }
}

void HostWorks::rethrow_if_failed() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

}  // namespace slipstream::runtime
