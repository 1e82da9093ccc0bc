// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs works of the host, such as a transfer by MPI or a hash, at their positions on a stream of a GPU.
//
// Functions that a CUDA stream calls may not wait, because the driver may run those of all streams one after the other,
// including NCCL's own. Here such a function only wakes a thread, which runs the work, and the stream waits for a word
// that this thread writes.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/device/device.h"

namespace slipstream::runtime {

/// The host's part of one stream of a cuda device.
class HostWorks : public std::enable_shared_from_this<HostWorks> {
 public:
  /// Takes pinned memory of `device` for a word.
  HostWorks(const std::string& stream, Device& device);
  /// Blocks until the works that the stream has reached have ended.
  ~HostWorks();
  HostWorks(const HostWorks&) = delete;
  HostWorks& operator=(const HostWorks&) = delete;

  /// Returns a work for the stream that runs `work`, whose memory is the host's, as on a cpu, after all earlier and
  /// before all later commands of the stream. The result owns this object. After a work that throws, later ones are
  /// skipped, and the next launch throws the same error.
  Work on_stream(Work work);

 private:
  struct Task {
    std::shared_ptr<const std::function<void(LaunchContext&)>> fn;  // null: the end
    Frame frame;
  };
  void push(Task task);
  void run_all();
  void rethrow_if_failed();

  std::unique_ptr<Allocation> flag_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Task> tasks_;    // guarded by mutex_
  std::exception_ptr error_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace slipstream::runtime
