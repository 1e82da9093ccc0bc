// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams and events of the cpu device: a worker thread per stream, and events as positions in a stream's records.
//
// An event holds (stream, number of the record on that stream). So a wait captures two words, and a record wakes only
// the threads that wait for a number that it has reached. Nothing here allocates once the queues have grown to their
// size.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/fail_point.h"
#include "engine/base/thread_usage.h"
#include "engine/device/clock.h"
#include "engine/device/device.h"

namespace slipstream::cpu {

/// The number of records that one stream has completed. It outlives the stream while an event points to it.
class Progress {
 public:
  bool reached(uint64_t record) const { return done_.load(std::memory_order_seq_cst) >= record; }
  /// Blocks. Spins for a few hundred nanoseconds, yields the core a few times, and then sleeps.
  void wait_for(uint64_t record);
  void advance_to(uint64_t record);

 private:
  static constexpr uint64_t kNoSleeper = std::numeric_limits<uint64_t>::max();
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> wanted_{kNoSleeper};  // the smallest record that a sleeper waits for
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// State that all streams and events of one device share.
struct Core {
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> delay_seed{0};
  std::atomic<int64_t> delay_max_ns{0};
  std::atomic<int64_t> host_waits{0};
  std::mutex mutex;
  std::exception_ptr first_error;                     // guarded by mutex
  std::vector<std::unique_ptr<Progress>> progresses;  // guarded by mutex; one per stream ever made

  void fail(std::exception_ptr error);
  void rethrow_if_failed();
};

/// State that the event and its queued records share.
class EventState {
 public:
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  struct Position {
    Progress* progress = nullptr;  // null: never recorded
    uint64_t record = 0;
  };
  /// Returns the generation of this record, counted from 1.
  uint64_t set_latest(Position position);
  Position latest() const;
  void complete(uint64_t generation, int64_t time_ns);
  int64_t completed_ns() const;

 private:
  std::atomic<int> references_{1};
  mutable std::mutex mutex_;
  Position latest_;
  uint64_t generation_ = 0;            // the generation of the most recent record
  uint64_t completed_generation_ = 0;  // the generation of the most recent record that has completed
  int64_t completed_ns_ = 0;
};

class CpuEvent final : public Event {
 public:
  CpuEvent(std::shared_ptr<Core> core, uint64_t tag) : core_(std::move(core)), tag_(tag) {}
  ~CpuEvent() override { state_->release(); }
  CpuEvent(const CpuEvent&) = delete;
  CpuEvent& operator=(const CpuEvent&) = delete;

  void synchronize() override;
  bool query() const override;
  int64_t completed_ns() const override { return state_->completed_ns(); }
  uint64_t tag() const override { return tag_; }
  EventState& state() const { return *state_; }

 private:
  std::shared_ptr<Core> core_;
  uint64_t tag_;
  EventState* state_ = new EventState;
};

class CpuStream final : public Stream {
 public:
  CpuStream(std::shared_ptr<Core> core, const StreamOptions& options);
  /// Blocks. Runs the remaining commands.
  ~CpuStream() override;

  void launch(const Work& work, const Frame& frame) override;
  void record(Event& event) override;
  void wait(const Event& event, const Frame& frame) override;
  void synchronize() override;
  const std::string& name() const override { return name_; }
  void drain(std::vector<Span>& spans) override;

 private:
  struct Command {
    enum class Kind : uint8_t { work, record, wait, stop };
    Kind kind = Kind::stop;
    const Work* work = nullptr;
    EventState* event = nullptr;   // record; holds one reference
    Progress* progress = nullptr;  // wait
    uint64_t record = 0;           // record, wait: its number on that progress
    uint64_t tag = 0;              // record: generation of the event; wait: tag of the event
    Frame frame;
  };

  void push(const Command& command);
  void push_locked(const Command& command, std::unique_lock<std::mutex>& lock);
  void worker_main();
  void run_all(std::vector<Command>& commands);
  void run_work(const Command& command);
  void run_wait(const Command& command);
  void pause_before_work();
  void run_function(const Work& work, LaunchContext& context);
  /// Reads the thread's usage if the last reading is long ago.
  ThreadUsage::Part look_at(int64_t now_ns);
  void add_span(const Span& span);

  std::shared_ptr<Core> core_;
  std::string name_;
  int threads_;
  bool high_priority_;
  bool may_fail_ = has_fail_point();
  Progress* progress_;                  // owned by core_
  std::unique_ptr<ThreadPool> pool_;    // made by the worker, so that its memory is first touched there
  uint64_t works_ = 0;                  // the works run so far; worker only
  std::unique_ptr<ThreadUsage> usage_;  // the usage of the worker, which makes this object
  int64_t looked_ns_ = 0;               // worker only

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Command> queue_;  // guarded by mutex_
  uint64_t records_ = 0;        // guarded by mutex_; the records issued so far
  bool asleep_ = false;         // guarded by mutex_
  std::atomic<bool> has_commands_{false};

  std::mutex spans_mutex_;
  std::vector<Span> spans_;  // guarded by spans_mutex_
  bool stopping_ = false;    // worker only
  std::thread worker_;
};

}  // namespace slipstream::cpu
