// SPDX-License-Identifier: Apache-2.0
#pragma once
// Looks after works whose end only the device sees: an error of the wire or a hang ends the run with a sentence that
// names the task.
//
// On a CPU a work that cannot finish throws in its stream. On a GPU nobody would notice: the stream stands, and the
// host waits for it.

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
  double timeout_seconds = 600;  // that the host may wait at one place, or take to issue a step
  std::chrono::milliseconds poll{100};
  double patience_seconds = 60;  // that the host may go on waiting after the communicators were told to abort
  double farewell_seconds =
      5;  // the same once the owner ends: on a lost GPU a recording that broke off keeps its communicators for ever
  /// What is left then: called with the sentence and the code of the trouble, from the watchdog's thread; should end
  /// the process. Empty: it waits on.
  std::function<void(const std::string& sentence, ExitCode code)> leave = {};
};

/// Aborts all communicators at the first trouble, so that whoever waits for the device returns; rethrow() then says
/// why.
///
/// Each is aborted from a thread of its own: an abort may wait for the device, where the operations of the other
/// communicators stand until they are aborted, too.
class Watchdog {
 public:
  /// Borrows `communicators` (null ones are skipped). `in_flight` names the oldest work that has not ended, or is
  /// empty; called from the watchdog's thread, while the host waits.
  Watchdog(std::vector<Communicator*> communicators, std::function<std::string()> in_flight,
           const WatchdogOptions& options);
  /// Blocks while communicators are being aborted.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Blocks. Runs `wait`, which blocks until the device is done with something, under the time limit.
  /// Throws: CommError of the wire or of the limit, naming the work in flight; else what `wait` throws.
  void watch(const std::function<void()>& wait);
  /// Blocks where a stream takes no more commands. As watch, for what gives the device more to do: in_flight is not
  /// asked meanwhile, so trouble names no work.
  void watch_issue(const std::function<void()>& issue);
  /// Blocks. As watch, for what must be done in spite of trouble: throws only what `wait` throws.
  void watch_to_the_end(const std::function<void()>& wait);
  /// Throws what was seen, if anything.
  void rethrow();
  /// Trouble that somebody else has seen; the first counts. `code` is for `leave`. Returns at once.
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
  bool ends_ = false;  // under mutex_, as all below
  Host host_ = Host::works;
  Clock::time_point host_since_;
  std::string trouble_;
  ExitCode trouble_code_ = ExitCode::communication;
  std::thread thread_;
};

}  // namespace slipstream::comm
