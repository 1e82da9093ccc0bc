// SPDX-License-Identifier: Apache-2.0
// One thread that polls the wires for errors and the clock for timeouts.

#include "comm/watchdog.h"

#include "engine/base/check.h"
#include "engine/base/parallel.h"

namespace slipstream::comm {

Watchdog::Watchdog(std::vector<Communicator*> communicators, std::function<std::string()> in_flight,
                   const WatchdogOptions& options)
    : communicators_(std::move(communicators)), in_flight_(std::move(in_flight)), options_(options) {
  std::erase(communicators_, nullptr);
  thread_ = start_thread("the watchdog", [this] { run(); });
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
  while (!changed_.wait_for(lock, options_.poll, [&] { return ends_ || !trouble_.empty(); })) {
    lock.unlock();
    std::string sentence;
    try {
      for (Communicator* communicator : communicators_) communicator->check_for_errors();
    } catch (const CommError& error) {
      sentence = error.what();
    }
    lock.lock();
    // This is read after the check, so that a wait that began meanwhile gets an error that names its work.
    const bool late = host_ != Host::works &&
                      std::chrono::duration<double>(Clock::now() - host_since_).count() > options_.timeout_seconds;
    // While the host waits, no thread issues work. The lock keeps that wait from ending.
    const std::string work = host_ == Host::waits && (late || !sentence.empty()) ? in_flight_() : "";
    lock.unlock();
    if (!sentence.empty() && !work.empty()) sentence += fmt::format(" In flight: {}.", work);
    if (sentence.empty() && late) {
      sentence = fmt::format(
          "[comm] {} has not ended within {} s. A rank may be gone or late. Look for the first error among the ranks, "
          "or raise "
          "comm.timeout_seconds.",
          work.empty() ? "the work in flight" : work, options_.timeout_seconds);
      if (options_.late) options_.late(sentence);
    }
    if (!sentence.empty()) give_up(sentence);
    lock.lock();
  }
  const bool trouble = !trouble_.empty();
  lock.unlock();
  if (trouble) abort_all();
}

void Watchdog::abort_all() {
  size_t left = communicators_.size();
  std::vector<std::thread> aborts;
  for (Communicator* communicator : communicators_)
    aborts.emplace_back([&, communicator] {
      communicator->abort();
      const std::lock_guard lock(mutex_);
      --left;
      changed_.notify_all();
    });
  {
    // The owner sees the error when it returns from its wait or ends. The patience counts only while it waits.
    std::unique_lock lock(mutex_);
    auto since = Clock::now();
    while (!(ends_ && left == 0)) {
      changed_.wait_for(lock, options_.poll);
      if (host_ == Host::works && !ends_) since = Clock::now();
      const double patience_seconds =
          ends_ ? std::min(options_.end_patience_seconds, options_.patience_seconds) : options_.patience_seconds;
      if (!options_.leave || std::chrono::duration<double>(Clock::now() - since).count() <= patience_seconds) continue;
      const std::string sentence =
          fmt::format("{} The communicators were aborted, and the GPU did not become free within {} s.", trouble_,
                      patience_seconds);
      lock.unlock();
      options_.leave(sentence, trouble_code_);
      lock.lock();
      since = Clock::now();
    }
  }
  for (std::thread& abort : aborts) abort.join();
}

void Watchdog::give_up(const std::string& sentence, ExitCode code) {
  {
    const std::lock_guard lock(mutex_);
    if (trouble_.empty()) trouble_ = sentence, trouble_code_ = code;
  }
  changed_.notify_all();
}

void Watchdog::watch(const std::function<void()>& wait) { watch_as(Host::waits, wait); }

void Watchdog::watch_issue(const std::function<void()>& issue) { watch_as(Host::issues, issue); }

void Watchdog::watch_as(Host host, const std::function<void()>& what) {
  rethrow();
  std::exception_ptr thrown;
  try {
    run_as(host, what);
  } catch (...) {
    thrown = std::current_exception();
  }
  rethrow();
  if (thrown) std::rethrow_exception(thrown);
}

void Watchdog::watch_to_the_end(const std::function<void()>& wait) { run_as(Host::waits, wait); }

void Watchdog::run_as(Host host, const std::function<void()>& what) {
  set(host);
  try {
    what();
  } catch (...) {
    set(Host::works);
    throw;
  }
  set(Host::works);
}

void Watchdog::set(Host host) {
  const std::lock_guard lock(mutex_);
  host_ = host;
  host_since_ = Clock::now();
}

void Watchdog::rethrow() {
  std::lock_guard lock(mutex_);
  if (!trouble_.empty()) throw CommError("{}", trouble_);
}

}  // namespace slipstream::comm
