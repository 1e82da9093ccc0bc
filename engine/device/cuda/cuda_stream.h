// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams and events of the cuda device: CUDA's own, with timing events around every work and every wait.
//
// A stream is driven by one host thread. Nothing here makes the host wait for the GPU but the calls that say Blocks.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.h"

namespace slipstream::cuda {

/// Times of completed events on CLOCK_MONOTONIC, calibrated once.
///
/// CUDA gives differences as float milliseconds: after an hour their last bit is 0.2 ms. So the epoch that times are
/// counted from moves along with the run.
class Clock {
 public:
  /// Blocks.
  Clock();
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  /// `completed` must be a timing event whose record has completed. Safe from any thread.
  int64_t at_ns(cudaEvent_t completed);

 private:
  void move_epoch(double ms_since_epoch);

  std::mutex mutex_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t epoch_ = nullptr;
  cudaEvent_t next_epoch_ = nullptr;
  bool next_is_recorded_ = false;
  int64_t epoch_ns_ = 0;
};

/// What all streams and events of one device share.
struct Core {
  explicit Core(int device_index) : index(device_index) {}
  /// Makes this device the calling thread's. Every public function of the cuda device begins with it.
  void enter() const;
  void fail(std::exception_ptr error);
  void rethrow_if_failed();

  const int index;
  std::unique_ptr<Clock> clock;
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> delay_seed{0};
  std::atomic<int64_t> delay_max_ns{0};
  std::mutex mutex;
  std::exception_ptr first_error;  // under mutex
};

class CudaEvent final : public Event {
 public:
  CudaEvent(std::shared_ptr<Core> core, uint64_t tag);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void synchronize() override;
  bool query() const override;
  /// While a newer record is pending: the time that was last asked for, because CUDA keeps only the latest record.
  int64_t completed_ns() const override;
  uint64_t tag() const override { return tag_; }

 private:
  friend class CudaStream;
  std::shared_ptr<Core> core_;
  uint64_t tag_;
  cudaEvent_t event_ = nullptr;
  const void* recorded_on_ = nullptr;  // null: never recorded
  mutable std::atomic<int64_t> completed_ns_{0};
};

class CudaStream final : public Stream {
 public:
  CudaStream(std::shared_ptr<Core> core, const StreamOptions& options);
  /// Blocks. Runs what is still queued.
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void launch(const Work& work, const Frame& frame) override;
  void record(Event& event) override;
  void wait(const Event& event, const Frame& frame) override;
  void synchronize() override;
  const std::string& name() const override { return name_; }
  void drain(std::vector<Span>& spans) override;

 private:
  /// A span whose times are not known yet; `begin` and `end` number the marks.
  struct Open {
    Span span;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  uint64_t begin_mark();
  uint64_t record_mark();
  cudaEvent_t mark(uint64_t number) const { return marks_[static_cast<size_t>(number - first_mark_)]; }
  void pause_before_work();
  void collect();
  void run(const Work& work, const Frame& frame);
  template <typename Body>
  void guarded(Body body);

  std::shared_ptr<Core> core_;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  uint64_t works_ = 0;

  // Marks are recorded in order, so what is behind the oldest open span is free again.
  std::deque<cudaEvent_t> marks_;
  std::vector<cudaEvent_t> spare_marks_;
  uint64_t first_mark_ = 0;
  std::optional<uint64_t> end_of_wait_;  // the newest mark, when a wait was the last command
  std::deque<Open> open_;
  std::vector<Span> spans_;
  int64_t last_end_ns_ = 0;
};

}  // namespace slipstream::cuda
