// SPDX-License-Identifier: Apache-2.0
#pragma once
// The streams and events of the cuda device. They are CUDA's own, with timing events around every work and every wait.
//
// One host thread drives a stream. The host waits for the GPU only in the calls marked Blocks.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/clock_map.h"
#include "engine/device/cuda/ranges.h"
#include "engine/device/device.h"

namespace slipstream::cuda {

/// Converts times of completed events to CLOCK_MONOTONIC.
///
/// CUDA returns differences as float milliseconds, whose last bit is 0.2 ms after an hour. So the epoch of the times
/// moves along with the run, once a second when times are read. Each new epoch is also a reading of the GPU's drifting
/// clock: it was recorded no earlier than its call and no later than the time at which it was seen to be complete. No
/// thread waits for it.
class Clock {
 public:
  /// Blocks.
  Clock();
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  /// `completed` must be a timing event whose record has completed. Any thread may call this.
  int64_t at_ns(cudaEvent_t completed);

 private:
  void move_epoch(double ms_since_epoch);
  void record_next();

  std::mutex mutex_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t epoch_ = nullptr;
  cudaEvent_t next_epoch_ = nullptr;
  bool next_is_recorded_ = false;
  int64_t next_asked_ns_ = 0;  // on the host's clock, just before the record
  int64_t epoch_ns_ = 0;       // on the GPU's clock, whose zero is the first epoch
  std::optional<ClockMap> host_;
};

class CudaStream;
class CudaGraph;

/// State that all streams and events of one device share.
struct Core {
  explicit Core(int device_index) : index(device_index) {}
  /// Makes this device the calling thread's device. Every public function of the cuda device begins with this call.
  void enter() const;
  void fail(std::exception_ptr error);
  void rethrow_if_failed();

  const int index;
  std::unique_ptr<Clock> clock;
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> delay_seed{0};
  std::atomic<int64_t> delay_max_ns{0};
  std::atomic<int64_t> host_waits{0};
  std::mutex mutex;
  std::exception_ptr first_error;    // guarded by mutex
  std::vector<CudaStream*> streams;  // existing streams; guarded by mutex
  StepRange step_range;              // used by the one thread that drives the streams
  CudaGraph* capturing = nullptr;    // the graph being recorded; used by the thread that drives the streams
};

/// A CUDA event that its last user destroys.
class EventHandle {
 public:
  explicit EventHandle(unsigned flags);
  ~EventHandle();
  EventHandle(const EventHandle&) = delete;
  EventHandle& operator=(const EventHandle&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaEvent final : public Event {
 public:
  CudaEvent(std::shared_ptr<Core> core, uint64_t tag);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void synchronize() override;
  bool query() const override;
  /// While a newer record is pending, returns the time that was last read, because CUDA keeps only the latest record.
  int64_t completed_ns() const override;
  uint64_t tag() const override { return tag_; }

 private:
  friend class CudaStream;
  friend class CudaGraph;
  cudaEvent_t handle() const { return graph_end_ ? graph_end_->get() : event_; }

  std::shared_ptr<Core> core_;
  uint64_t tag_;
  cudaEvent_t event_ = nullptr;
  const void* recorded_on_ = nullptr;       // the stream; null: never recorded
  std::shared_ptr<EventHandle> graph_end_;  // the most recent record is in a launched graph, whose end replaces it
  const CudaGraph* captured_in_ = nullptr;  // the graph being recorded that contains a record of this event
  const void* captured_on_ = nullptr;       // the stream of that record
  mutable std::atomic<int64_t> completed_ns_{0};
};

class CudaStream final : public Stream {
 public:
  CudaStream(std::shared_ptr<Core> core, const StreamOptions& options);
  /// Blocks. Runs the remaining commands.
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
  friend class CudaGraph;
  /// A span whose times are not known yet.
  struct Open {
    Span span;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    cudaEvent_t done =
        nullptr;             // complete when both times are known: `end` itself, or the end of the graph they are in
    uint64_t kept_mark = 0;  // eager: marks before this one are free when the span is taken
  };

  uint64_t begin_mark();
  uint64_t record_mark();
  cudaEvent_t mark(uint64_t number) const { return marks_[static_cast<size_t>(number - first_mark_)]; }
  void open_span(const Span& span, uint64_t begin, uint64_t end);
  void pause_before_work();
  void collect();
  void run(const Work& work, const Frame& frame);
  void capture_work(CudaGraph& graph, const Work& work, const Frame& frame);
  void capture_wait(CudaGraph& graph, const CudaEvent& awaited, const Frame& frame);
  void call(const Work& work, const Frame& frame);
  void launch_on_host(std::function<void()> body);
  /// Must be called before every eager command, which then runs after the most recently launched graph.
  void leave_graph();
  template <typename Body>
  void guarded(Body body);

  std::shared_ptr<Core> core_;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  uint64_t works_ = 0;

  // Marks are recorded in order, so those after the oldest open span are free again.
  std::deque<cudaEvent_t> marks_;
  std::vector<cudaEvent_t> spare_marks_;
  uint64_t first_mark_ = 0;
  std::optional<uint64_t> end_of_wait_;  // the newest mark, when a wait was the last command
  std::deque<Open> open_;
  std::vector<Span> spans_;
  int64_t last_end_ns_ = 0;

  std::shared_ptr<EventHandle> graph_end_;  // the end of the most recent graph, if this stream has not waited for it
  bool has_eager_work_ = false;             // the next graph must wait for this work
};

/// The commands that the streams of a device received during a capture. The streams fork from `origin` and join it
/// again.
///
/// Every span of works and every wait lies between two marks, which are events that the graph records. A stream in a
/// graph has no gaps of the host, so the mark that ends a span begins the next one.
class CudaGraph final : public Graph {
 public:
  /// Records `issue`. Throws: the error of a call that the capture refused, or of a failed work; then nothing has run.
  CudaGraph(std::shared_ptr<Core> core, CudaStream& origin, const std::function<void()>& issue, GraphSpans kind);
  /// Blocks until its last run has ended.
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void launch(uint32_t step) override;
  bool ended() override;

 private:
  friend class CudaStream;
  struct Recorded {
    CudaStream* stream = nullptr;
    CudaStream::Open open;
  };
  /// Ends the recording, so that the streams run their commands again.
  void leave();
  void release_events();
  void begin_on(CudaStream& stream);
  cudaEvent_t mark_on(CudaStream& stream);
  /// Begins a span of works at the stream's last mark, unless `item` has one open. Closing the span records a mark.
  void open_span(CudaStream& stream, const Work& work, uint32_t item);
  void close_span(CudaStream& stream);
  std::vector<CudaStream*> others() const;

  std::shared_ptr<Core> core_;
  CudaStream& origin_;
  std::vector<std::unique_ptr<EventHandle>> events_;  // marks, forks and joins
  std::map<const CudaStream*, cudaEvent_t> last_marks_;
  std::vector<Recorded> spans_;                     // in the order of the calls
  std::map<const CudaStream*, size_t> open_spans_;  // indices of spans without an end
  GraphSpans kind_;
  std::vector<CudaEvent*> recorded_;  // events with a record in the graph
  std::vector<std::unique_ptr<std::function<void()>>> on_host_;
  std::shared_ptr<EventHandle> end_;
  std::exception_ptr refusal_;  // the first command that the capture refused
  cudaGraphExec_t exec_ = nullptr;
  bool was_launched_ = false;
};

}  // namespace slipstream::cuda
