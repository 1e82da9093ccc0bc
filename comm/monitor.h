// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ends a run of several ranks when a wait for other ranks exceeds its limit, with a sentence that names the rank and
// the task.

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/flight.h"
#include "comm/side_channel.h"

namespace slipstream::comm {

/// The limits in seconds by phase; 0 means no limit. A wait in the phases start and save also exceeds its limit when no
/// exchange of hosts begins or ends for as long, because a whole machine may hang in a read or a write.
struct WaitLimits {
  double start_seconds = 1800;
  double step_seconds = 600;  // for evaluations, too
  double save_seconds = 1800;

  double of(RunPhase phase) const {
    return phase == RunPhase::start ? start_seconds : phase == RunPhase::save ? save_seconds : step_seconds;
  }
};

/// Milliseconds since 1970 on this host's clock.
int64_t unix_ms();

/// One thread per rank sleeps between looks and never computes. It sends a sign of life to rank 0. On an alarm, rank 0
/// asks all ranks for their records over the side channel and judges them; then every rank writes its record and
/// leaves.
///
/// A rank without contact to rank 0 judges alone. Time during which this process was stopped does not count.
class Monitor {
 public:
  /// `rank` as the launcher counts it. `leave` ends the process with code 6; it is called on the monitor's thread.
  Monitor(int rank, std::function<void()> leave);
  /// Announces the end of this rank to rank 0, and ends the thread.
  ~Monitor();
  /// Blocks, under the limit of the exchange that has begun. A rank that stops in this call would otherwise keep the
  /// launcher waiting, and no other rank would be left to name it. Rank 0 returns when the processes of all others have
  /// ended; the others return when rank 0 knows that all ranks are here. This object is of no use afterwards.
  void end_together();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// Called once, on all ranks. From then on, records reach rank 0. `addresses` is the result of rank 0's listen(),
  /// which this object takes over. `now_ms` is the time on rank 0's clock, because the clocks of hosts differ and jump.
  void connect(int rank, int size, const std::string& token, int64_t now_ms, const std::string& addresses,
               bool on_host_of_rank_0, std::unique_ptr<SideChannel> listening);

  void limit(const WaitLimits& limits);
  /// Writes records into this folder, which is created with the first record.
  void write_to(const std::string& folder);
  /// Returns the previous phase.
  RunPhase enter(RunPhase phase);
  /// An exchange of hosts begins or ends. One thread makes both calls.
  void begin(const std::string& exchange);
  void end();
  /// `state` is called on the monitor's thread, and no longer after show({}) has returned.
  void show(std::function<FlightState()> state);
  /// Blocks until the process or the monitor ends. Reports that another limit of the phase step was exceeded. Callable
  /// from any thread.
  void alarm(const std::string& sentence);
  /// Does not wait. The time for which this process was stopped so far, less up to half a second for each stop. Waits
  /// for a core do not count. Callable from any thread.
  int64_t stopped_ns() const { return stopped_ns_.load(std::memory_order_relaxed); }

 private:
  void run();
  FlightRecord record(const std::string& alarm);
  void write(const FlightRecord& record);
  /// Returns a sentence when a limit is exceeded, and nothing otherwise.
  std::string look(int64_t elapsed_ns);
  /// True if it made the connection.
  bool connect_now();
  void send_sign_of_life();
  /// Handles messages that need no answer now.
  void take(const SideChannel::Message& message);
  void add_last_heard(int rank, FlightRecord& own) const;
  /// Rank 0: a rank has ended without notice. The launcher ends the others.
  void note_the_end();
  void judge_all(const std::string& alarm, std::map<int, FlightRecord> answers);
  void ask_rank_0(const std::string& alarm);
  void answer();
  void leave();
  /// Looks at the steps of end_together().
  void look_at_end();
  /// Rank 0: the others have not ended in time.
  void name_stayed(const std::string& alarm);
  [[nodiscard]] bool ends();

  std::function<void()> leave_;
  int wake_ = -1;  // an event descriptor
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;  // mutex_ protects this and all below until `wanted_`
  bool ends_together_ = false, ended_together_ = false;
  WaitLimits limits_;
  std::string folder_;
  RunPhase phase_ = RunPhase::start;
  int64_t exchanges_begun_ = 0, exchanges_ended_ = 0;
  std::string exchange_;
  int64_t exchange_began_ns_ = 0;
  int64_t epoch_ms_;    // since 1970, when the monotonic clock was 0
  uint64_t moves_ = 0;  // of the host: the number of phases and exchanges so far
  std::string alarm_;
  int alarms_ = 0;  // the number of callers in alarm()
  struct Connection {
    int rank = 0, size = 1;
    std::string token, addresses;
    bool on_host_of_rank_0 = true;
    std::unique_ptr<SideChannel> listening;
  };
  std::unique_ptr<Connection> wanted_;

  std::mutex state_mutex_;
  std::function<FlightState()> state_;  // under state_mutex_

  // Only the monitor's thread uses the members below.
  std::unique_ptr<SideChannel> channel_;
  int rank_, size_;
  std::string run_, host_;
  uint64_t seen_moves_ = 0;
  int64_t still_ns_ = 0;  // since the host last moved
  std::atomic<int64_t> stopped_ns_{0};
  struct Heard {
    std::string record;
    int64_t at_ns = 0;
    bool ended = false, announced_end = false;
  };
  std::map<int, Heard> heard_;  // on rank 0, by rank
  bool left_ = false;           // leave_ was called, and returned (in a test)
  bool announced_ = false;      // this rank's end was announced, in end_together()
  bool all_here_ = false;       // in end_together(), as far as rank 0 knows
  std::thread thread_;
};

}  // namespace slipstream::comm
