// SPDX-License-Identifier: Apache-2.0
// The supervising thread sleeps until a wait begins, then until the wait ends or exceeds the limit.

#include "comm/wait_limit.h"

#include <utility>

#include "engine/base/parallel.h"

namespace slipstream::comm {

WaitLimit::WaitLimit(double seconds, std::function<void(const std::string&)> leave)
    : seconds_(seconds), leave_(std::move(leave)) {
  thread_ = start_thread("the limit of waits", [this] { run(); });
}

WaitLimit::~WaitLimit() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WaitLimit::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !awaited_.empty(); });
    if (ends_) return;
    const uint64_t wait = waits_;
    const auto deadline =
        std::chrono::steady_clock::now() +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds_));
    if (changed_.wait_until(lock, deadline, [&] { return ends_ || waits_ != wait; })) continue;
    const std::string awaited = awaited_;
    lock.unlock();
    leave_(awaited);
    lock.lock();
    changed_.wait(lock, [&] { return ends_ || waits_ != wait; });
  }
}

void WaitLimit::set(std::string awaited) {
  {
    const std::lock_guard lock(mutex_);
    awaited_ = std::move(awaited);
    ++waits_;
  }
  changed_.notify_all();
}

void WaitLimit::watch(const std::string& awaited, const std::function<void()>& wait) {
  set(awaited);
  try {
    wait();
  } catch (...) {
    set("");
    throw;
  }
  set("");
}

}  // namespace slipstream::comm
