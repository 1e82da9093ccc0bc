// SPDX-License-Identifier: Apache-2.0
#pragma once
// Supervises works whose end only the device sees. A wire error or a hang ends the run with an error that names the
// task.
//
// On a CPU, a work that cannot finish throws in its stream. On a GPU, its stream stops and the host would wait forever.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "engine/base/check.h"

namespace slipstream::comm {

struct WatchdogOptions {
  double timeout_seconds = 600;  // the limit for one wait of the host, and for issuing one step
  std::chrono::milliseconds poll{100};
  double patience_seconds = 60;  // how long the host may keep waiting after the abort of the communicators
  double end_patience_seconds =
      5;  // the same when the owner ends: on a lost GPU an interrupted recording keeps its communicators forever
  /// Called on the watchdog's thread when a limit is exceeded, before the abort: may end the process.
  std::function<void(const std::string& sentence)> late = {};
  /// The last resort, called on the watchdog's thread with the message and the exit code; it should end the process.
  /// Empty: the watchdog keeps waiting.
  std::function<void(const std::string& sentence, ExitCode code)> leave = {};
};

/// Aborts all communicators at the first error, so that a thread that waits for the device returns. rethrow() then
/// throws the error.
///
/// A separate thread aborts each communicator, because an abort may wait for the device, which waits for the operations
/// of the other communicators until they are aborted, too.
class Watchdog {
 public:
  /// Borrows `communicators` and skips null ones. `in_flight` returns the name of the oldest work that has not ended,
  /// or an empty string; it is called on the watchdog's thread while the host waits.
  Watchdog(std::vector<Communicator*> communicators, std::function<std::string()> in_flight,
           const WatchdogOptions& options);
  /// Blocks while communicators are being aborted.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Blocks. Runs `wait`, which waits for the device, under the time limit.
  /// Throws: CommError of the wire or of the limit, naming the work in flight; otherwise what `wait` throws.
  void watch(const std::function<void()>& wait);
  /// Blocks where a stream takes no more commands. Like watch, for a function that issues work. in_flight is not called
  /// meanwhile, so the error names no work.
  void watch_issue(const std::function<void()>& issue);
  /// Blocks. Like watch, for work that must finish even after an error. Throws only what `wait` throws.
  void watch_to_the_end(const std::function<void()>& wait);
  /// Throws the recorded error, if there is one.
  void rethrow();
  /// Reports an error that was found elsewhere, and returns at once. The first report counts. `code` is passed to
  /// `leave`.
  void give_up(const std::string& sentence, ExitCode code = ExitCode::communication);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Host { works, issues, waits };
  void run();
  void abort_all();
  void watch_as(Host host, const std::function<void()>& what);
  void run_as(Host host, const std::function<void()>& what);
  void set(Host host);

  std::vector<Communicator*> communicators_;
  std::function<std::string()> in_flight_;
  WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;  // mutex_ protects this and all below
  Host host_ = Host::works;
  Clock::time_point host_since_;
  std::string trouble_;
  ExitCode trouble_code_ = ExitCode::communication;
  std::thread thread_;
};

}  // namespace slipstream::comm
