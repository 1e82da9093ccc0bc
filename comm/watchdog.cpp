// SPDX-License-Identifier: Apache-2.0
// One thread that sleeps: it asks the wires, and the clock.

#include "comm/watchdog.h"

#include "engine/base/check.h"

namespace slipstream::comm {

Watchdog::Watchdog(std::vector<Communicator*> communicators, std::function<std::string()> in_flight, const WatchdogOptions& options)
    : communicators_(std::move(communicators)), in_flight_(std::move(in_flight)), options_(options) {
  std::erase(communicators_, nullptr);
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, options_.poll, [&] { return ends_; })) {
    if (!trouble_.empty()) continue;
    const bool waits = waits_;
    const bool late = waits && std::chrono::duration<double>(Clock::now() - waits_since_).count() > options_.timeout_seconds;
    lock.unlock();
    std::string sentence;
    try {
      for (Communicator* communicator : communicators_) communicator->check_for_errors();
    } catch (const CommError& error) {
      sentence = error.what();
    }
    // Only while the host waits does nobody move what is in flight.
    const std::string work = waits && (late || !sentence.empty()) ? in_flight_() : "";
    if (!sentence.empty() && !work.empty()) sentence += fmt::format(" In flight: {}.", work);
    if (sentence.empty() && late)
      sentence = fmt::format("[comm] {} has not ended within {} s. A rank may be gone or late: look for the first error among the ranks, or raise "
                             "comm.timeout_seconds.", work.empty() ? "the work in flight" : work, options_.timeout_seconds);
    if (!sentence.empty()) give_up(sentence);
    lock.lock();
  }
}

void Watchdog::give_up(const std::string& sentence) {
  {
    std::lock_guard lock(mutex_);
    trouble_ = sentence;
  }
  for (Communicator* communicator : communicators_) communicator->abort();
}

void Watchdog::watch(const std::function<void()>& wait) {
  rethrow();
  {
    std::lock_guard lock(mutex_);
    waits_ = true;
    waits_since_ = Clock::now();
  }
  std::exception_ptr thrown;
  try {
    wait();
  } catch (...) {
    thrown = std::current_exception();
  }
  {
    std::lock_guard lock(mutex_);
    waits_ = false;
  }
  rethrow();
  if (thrown) std::rethrow_exception(thrown);
}

void Watchdog::rethrow() {
  std::lock_guard lock(mutex_);
  if (!trouble_.empty()) throw CommError("{}", trouble_);
}

}  // namespace slipstream::comm
