// SPDX-License-Identifier: Apache-2.0
#pragma once
// A time limit for waits that cannot be interrupted: a thread inside a library that waits for other processes.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace slipstream::comm {

/// Supervises one thread at a time from a thread of its own; a wait that exceeds the limit ends the process.
class WaitLimit {
 public:
  /// `leave` receives the description of the wait, on the supervising thread; it should end the process.
  WaitLimit(double seconds, std::function<void(const std::string& awaited)> leave);
  ~WaitLimit();
  WaitLimit(const WaitLimit&) = delete;
  WaitLimit& operator=(const WaitLimit&) = delete;

  double seconds() const { return seconds_; }
  /// Blocks. Runs `wait` under the limit; throws what `wait` throws.
  void watch(const std::string& awaited, const std::function<void()>& wait);

 private:
  void run();
  void set(std::string awaited);

  const double seconds_;
  std::function<void(const std::string&)> leave_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;    // under mutex_, as all below
  uint64_t waits_ = 0;   // number of waits begun and ended
  std::string awaited_;  // empty: no thread waits
  std::thread thread_;
};

}  // namespace slipstream::comm
