// SPDX-License-Identifier: Apache-2.0
#pragma once
// Looks after works whose end only the device sees: an error of the wire or a hang ends the run with a sentence that names the task.
//
// On a CPU a work that cannot finish throws in its stream. On a GPU nobody would notice: the stream stands, and the host waits for it.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace slipstream::comm {

struct WatchdogOptions {
  double timeout_seconds = 600;  // that the host may wait at one place
  std::chrono::milliseconds poll{100};
};

/// Aborts all communicators at the first trouble, so that whoever waits for the device returns; rethrow() then says why.
class Watchdog {
 public:
  /// Borrows `communicators` (null ones are skipped). `in_flight` names the oldest work that has not ended, or is empty; called from
  /// the watchdog's thread, while the host waits.
  Watchdog(std::vector<Communicator*> communicators, std::function<std::string()> in_flight, const WatchdogOptions& options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Blocks. Runs `wait`, which blocks until the device is done with something, under the time limit.
  /// Throws: CommError of the wire or of the limit, naming the work in flight; else what `wait` throws.
  void watch(const std::function<void()>& wait);
  /// Throws what was seen, if anything.
  void rethrow();

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  void give_up(const std::string& sentence);

  std::vector<Communicator*> communicators_;
  std::function<std::string()> in_flight_;
  WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;                 // under mutex_, as all below
  bool waits_ = false;
  Clock::time_point waits_since_;
  std::string trouble_;
  std::thread thread_;
};

}  // namespace slipstream::comm
