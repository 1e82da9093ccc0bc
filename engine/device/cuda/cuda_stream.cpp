// SPDX-License-Identifier: Apache-2.0
// Works enqueue at once, on the caller's thread. The first error stops all streams of the device.

#include "engine/device/cuda/cuda_stream.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "engine/device/cuda/cuda_check.h"

namespace slipstream::cuda {
namespace {

// A wait for a completed event costs the GPU about a microsecond, which does not count as a wait.
constexpr int64_t kShortestWaitNs = 2000;

/// Runs on a thread of the driver, which may not call CUDA. The value of the pointer is the pause.
void CUDART_CB sleep_ns(void* pause) {
  const auto pause_ns = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pause));
  const timespec duration{static_cast<time_t>(pause_ns / 1000000000), static_cast<long>(pause_ns % 1000000000)};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);
}

/// Runs on a thread of the driver, where an exception cannot propagate. The code that aborted has reported the error.
void CUDART_CB call_function(void* held) {
  try {
    (*static_cast<std::function<void()>*>(held))();
  } catch (const std::exception&) {
  }
}
void CUDART_CB call_and_delete_function(void* held) {
  const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(held));
  call_function(held);
}

}  // namespace

void Core::enter() const {
  thread_local int current = -1;
  if (current == index) return;
  SLIP_CUDA(cudaSetDevice(index));
  current = index;
}

void Core::fail(std::exception_ptr error) {
  std::lock_guard lock(mutex);
  if (!first_error) first_error = std::move(error);
  failed.store(true, std::memory_order_release);
}

void Core::rethrow_if_failed() {
  if (!failed.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex);
  std::rethrow_exception(first_error);
}

EventHandle::EventHandle(unsigned flags) { SLIP_CUDA(cudaEventCreateWithFlags(&event_, flags)); }
EventHandle::~EventHandle() { SLIP_CUDA_QUIETLY(cudaEventDestroy(event_)); }

CudaEvent::CudaEvent(std::shared_ptr<Core> core, uint64_t tag) : core_(std::move(core)), tag_(tag) {
  core_->enter();
  SLIP_CUDA(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync));
}

CudaEvent::~CudaEvent() { SLIP_CUDA_QUIETLY(cudaEventDestroy(event_)); }

void CudaEvent::synchronize() {
  core_->host_waits.fetch_add(1, std::memory_order_relaxed);
  core_->rethrow_if_failed();
  if (!recorded_on_) return;
  try {
    core_->enter();
    SLIP_CUDA(cudaEventSynchronize(handle()));
  } catch (...) {
    core_->fail(std::current_exception());
  }
  core_->rethrow_if_failed();
}

bool CudaEvent::query() const {
  if (!recorded_on_ || core_->failed.load(std::memory_order_acquire)) return true;
  try {
    core_->enter();
    return SLIP_CUDA_READY(cudaEventQuery(handle()));
  } catch (...) {
    core_->fail(std::current_exception());
    return true;
  }
}

int64_t CudaEvent::completed_ns() const {
  if (recorded_on_ && query() && !core_->failed.load(std::memory_order_acquire))
    completed_ns_.store(core_->clock->at_ns(handle()), std::memory_order_relaxed);
  return completed_ns_.load(std::memory_order_relaxed);
}

CudaStream::CudaStream(std::shared_ptr<Core> core, const StreamOptions& options)
    : core_(std::move(core)), name_(options.name) {
  core_->enter();
  int least = 0, greatest = 0;
  SLIP_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  SLIP_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, options.high_priority ? greatest : least));
  name_stream(stream_, name_);
  std::lock_guard lock(core_->mutex);
  core_->streams.push_back(this);
}

CudaStream::~CudaStream() {
  {
    std::lock_guard lock(core_->mutex);
    std::erase(core_->streams, this);
  }
  SLIP_CUDA_QUIETLY(cudaSetDevice(core_->index));
  SLIP_CUDA_QUIETLY(cudaStreamSynchronize(stream_));
  for (cudaEvent_t event : marks_) SLIP_CUDA_QUIETLY(cudaEventDestroy(event));
  for (cudaEvent_t event : spare_marks_) SLIP_CUDA_QUIETLY(cudaEventDestroy(event));
  SLIP_CUDA_QUIETLY(cudaStreamDestroy(stream_));
}

/// After the first failure nothing more is enqueued. A failure here is kept for the next wait or capture.
template <typename Body>
void CudaStream::guarded(Body body) {
  CudaGraph* const graph = core_->capturing;
  if (core_->failed.load(std::memory_order_acquire) || (graph && graph->refusal_)) return;
  try {
    core_->enter();
    body();
  } catch (...) {
    if (graph)
      graph->refusal_ = std::current_exception();
    else
      core_->fail(std::current_exception());
  }
}

void CudaStream::launch(const Work& work, const Frame& frame) {
  guarded([&] {
    core_->step_range.enter(frame.step);
    core_->capturing ? capture_work(*core_->capturing, work, frame) : run(work, frame);
  });
}

/// Enqueues the work's own commands.
void CudaStream::call(const Work& work, const Frame& frame) {
  {
    const Range range(work.name);
    LaunchContext context{.kind = DeviceKind::cuda, .native_stream = stream_, .frame = &frame};
    context.stream = this;
    context.enqueue_on_host = [](LaunchContext& c, std::function<void()> body) {
      static_cast<CudaStream*>(c.stream)->launch_on_host(std::move(body));
    };
    work.fn(context);
  }
  const cudaError_t launched = cudaGetLastError();
  if (launched != cudaSuccess) cuda::fail(launched, fmt::format("{} on stream {}", work.name, name_));
}

/// A function that runs once is destroyed after its run. A function in a graph is destroyed with the graph.
void CudaStream::launch_on_host(std::function<void()> body) {
  auto held = std::make_unique<std::function<void()>>(std::move(body));
  if (CudaGraph* graph = core_->capturing) {
    SLIP_CUDA(cudaLaunchHostFunc(stream_, call_function, held.get()));
    graph->on_host_.push_back(std::move(held));
  } else {
    SLIP_CUDA(cudaLaunchHostFunc(stream_, call_and_delete_function, held.get()));
    (void)held.release();
  }
}

void CudaStream::run(const Work& work, const Frame& frame) {
  leave_graph();
  pause_before_work();
  const uint64_t begin = begin_mark();
  call(work, frame);
  open_span({.kind = Span::Kind::work, .work = &work, .item = frame.item, .step = frame.step}, begin, record_mark());
}

void CudaStream::open_span(const Span& span, uint64_t begin, uint64_t end) {
  open_.push_back({.span = span, .begin = mark(begin), .end = mark(end), .done = mark(end), .kept_mark = end});
}

void CudaStream::record(Event& event) {
  guarded([&] {
    CudaEvent& recorded = static_cast<CudaEvent&>(event);
    if (CudaGraph* graph = core_->capturing) {
      graph->close_span(*this);  // so that no wait for this record ends before the span does
      SLIP_CUDA(cudaEventRecord(recorded.event_, stream_));
      recorded.captured_in_ = graph;
      recorded.captured_on_ = this;
      graph->recorded_.push_back(&recorded);
      return;
    }
    leave_graph();
    SLIP_CUDA(cudaEventRecord(recorded.event_, stream_));
    recorded.recorded_on_ = this;
    recorded.graph_end_.reset();
  });
}

void CudaStream::wait(const Event& event, const Frame& frame) {
  guarded([&] {
    const CudaEvent& awaited = static_cast<const CudaEvent&>(event);
    if (core_->capturing) return capture_wait(*core_->capturing, awaited, frame);
    // Records on the same stream come earlier in any case.
    if (!awaited.recorded_on_ || awaited.recorded_on_ == this) return;
    leave_graph();
    const uint64_t begin = begin_mark();
    SLIP_CUDA(cudaStreamWaitEvent(stream_, awaited.handle(), 0));
    const uint64_t end = record_mark();
    end_of_wait_ = end;
    open_span({.kind = Span::Kind::wait, .awaited = event.tag(), .item = frame.item, .step = frame.step}, begin, end);
  });
}

void CudaStream::synchronize() {
  core_->host_waits.fetch_add(1, std::memory_order_relaxed);
  core_->rethrow_if_failed();
  guarded([&] {
    leave_graph();
    SLIP_CUDA(cudaStreamSynchronize(stream_));
  });
  core_->rethrow_if_failed();
}

void CudaStream::drain(std::vector<Span>& spans) {
  guarded([&] { collect(); });
  core_->rethrow_if_failed();  // spans are missing: the GPU was lost since the caller's last wait
  spans.insert(spans.end(), spans_.begin(), spans_.end());
  spans_.clear();
}

/// The host issues a wait and the next command together, so the end of the wait is the beginning of that command. After
/// a work this does not hold: the stream may have been idle.
uint64_t CudaStream::begin_mark() {
  if (const auto shared = std::exchange(end_of_wait_, std::nullopt)) return *shared;
  return record_mark();
}

uint64_t CudaStream::record_mark() {
  if (spare_marks_.empty()) collect();
  if (spare_marks_.empty()) {
    cudaEvent_t event = nullptr;
    SLIP_CUDA(cudaEventCreateWithFlags(&event, cudaEventDefault));
    spare_marks_.push_back(event);
  }
  SLIP_CUDA(cudaEventRecord(spare_marks_.back(), stream_));
  marks_.push_back(spare_marks_.back());
  spare_marks_.pop_back();
  return first_mark_ + marks_.size() - 1;
}

/// Turns completed open spans into spans and frees their marks.
void CudaStream::collect() {
  while (!open_.empty() && SLIP_CUDA_READY(cudaEventQuery(open_.front().done))) {
    Open& open = open_.front();
    // Two epochs of the clock may differ by a rounding error, but the times of a stream must not decrease.
    open.span.begin_ns = std::max(core_->clock->at_ns(open.begin), last_end_ns_);
    open.span.end_ns = std::max(core_->clock->at_ns(open.end), open.span.begin_ns);
    const bool is_span = open.span.kind == Span::Kind::work || open.span.end_ns - open.span.begin_ns >= kShortestWaitNs;
    if (is_span) {
      spans_.push_back(open.span);
      last_end_ns_ = open.span.end_ns;
    }
    const uint64_t kept = open.kept_mark;  // the next span may begin with it
    open_.pop_front();
    for (; first_mark_ < kept; ++first_mark_) {
      spare_marks_.push_back(marks_.front());
      marks_.pop_front();
    }
  }
}

void CudaStream::leave_graph() {
  has_eager_work_ = true;
  if (const auto end = std::exchange(graph_end_, nullptr)) {
    SLIP_CUDA(cudaStreamWaitEvent(stream_, end->get(), 0));
    end_of_wait_.reset();
  }
}

void CudaStream::pause_before_work() {
  const uint64_t count = works_++;
  const int64_t max_ns = core_->delay_max_ns.load(std::memory_order_acquire);
  if (max_ns <= 0) return;
  const Philox random(core_->delay_seed.load(std::memory_order_relaxed), name_);
  const auto pause_ns = static_cast<uintptr_t>(random.below(count, static_cast<uint64_t>(max_ns) + 1));
  SLIP_CUDA(cudaLaunchHostFunc(stream_, sleep_ns, reinterpret_cast<void*>(pause_ns)));
  end_of_wait_.reset();
}

}  // namespace slipstream::cuda
