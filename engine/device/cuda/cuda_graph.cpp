// SPDX-License-Identifier: Apache-2.0
// A capture forks every stream of the device from the origin and joins it again. A launch is then one command on the
// origin and a barrier for all streams.

#include <utility>

#include "engine/base/check.h"
#include "engine/device/cuda/cuda_check.h"
#include "engine/device/cuda/cuda_stream.h"

namespace slipstream::cuda {

CudaGraph::CudaGraph(std::shared_ptr<Core> core, CudaStream& origin, const std::function<void()>& issue,
                     GraphSpans kind)
    : core_(std::move(core)), origin_(origin), kind_(kind), end_(std::make_shared<EventHandle>(cudaEventBlockingSync)) {
  core_->rethrow_if_failed();
  SLIP_ASSERT(!core_->capturing);
  // Other threads (the loader, NCCL's own) continue to allocate and query. Only this thread may not.
  SLIP_CUDA(cudaStreamBeginCapture(origin_.stream_, cudaStreamCaptureModeThreadLocal));
  core_->capturing = this;
  cudaGraph_t graph = nullptr;
  try {
    begin_on(origin_);
    for (CudaStream* stream : others()) {
      events_.push_back(std::make_unique<EventHandle>(cudaEventDisableTiming));
      SLIP_CUDA(cudaEventRecord(events_.back()->get(), origin_.stream_));
      SLIP_CUDA(cudaStreamWaitEvent(stream->stream_, events_.back()->get(), 0));
      begin_on(*stream);
    }
    issue();
    if (refusal_) std::rethrow_exception(refusal_);
    close_span(origin_);
    for (CudaStream* stream : others()) {
      close_span(*stream);
      events_.push_back(std::make_unique<EventHandle>(cudaEventDisableTiming));
      SLIP_CUDA(cudaEventRecord(events_.back()->get(), stream->stream_));
      SLIP_CUDA(cudaStreamWaitEvent(origin_.stream_, events_.back()->get(), 0));
    }
    leave();
    SLIP_CUDA(cudaStreamEndCapture(origin_.stream_, &graph));
    // Kernels keep the priority of the stream that they were recorded on; otherwise communication would run at the
    // origin's, the lowest.
    SLIP_CUDA(cudaGraphInstantiate(&exec_, graph, cudaGraphInstantiateFlagUseNodePriority));
    SLIP_CUDA(cudaGraphDestroy(graph));
  } catch (...) {
    // Ends the capture, because its streams would otherwise stay in it forever. A failure here follows from the first
    // error.
    if (core_->capturing) {
      leave();
      (void)cudaStreamEndCapture(origin_.stream_, &graph);
    }
    if (graph) SLIP_CUDA_QUIETLY(cudaGraphDestroy(graph));
    (void)cudaGetLastError();
    release_events();
    throw;
  }
}

/// CUDA lets no stream wait for a record in a capture, so an event whose record will never run is replaced.
void CudaGraph::release_events() {
  for (CudaEvent* event : recorded_) {
    SLIP_CUDA_QUIETLY(cudaEventRecord(event->event_, origin_.stream_));
    event->recorded_on_ = &origin_;
    event->graph_end_.reset();
  }
}

void CudaGraph::leave() {
  for (CudaEvent* event : recorded_) event->captured_in_ = nullptr;
  core_->capturing = nullptr;
}

/// Destroys the marks and host functions. So the last run must have ended, and times that have not been read yet are
/// read first.
CudaGraph::~CudaGraph() {
  if (was_launched_)
    SLIP_CUDA_QUIETLY(cudaEventSynchronize(end_->get()));
  else
    release_events();
  std::lock_guard lock(core_->mutex);
  for (CudaStream* stream : core_->streams) {
    try {
      stream->collect();
    } catch (const std::exception&) {
      // The device has failed, and the threads that waited for it have thrown.
    }
    std::erase_if(stream->open_, [&](const CudaStream::Open& open) { return open.done == end_->get(); });
  }
  if (exec_) SLIP_CUDA_QUIETLY(cudaGraphExecDestroy(exec_));
}

std::vector<CudaStream*> CudaGraph::others() const {
  std::lock_guard lock(core_->mutex);
  std::vector<CudaStream*> streams = core_->streams;
  std::erase(streams, &origin_);
  return streams;
}

void CudaGraph::begin_on(CudaStream& stream) {
  stream.end_of_wait_.reset();  // a mark from before the graph does not belong to it
  mark_on(stream);
}

cudaEvent_t CudaGraph::mark_on(CudaStream& stream) {
  events_.push_back(std::make_unique<EventHandle>(cudaEventDefault));
  const cudaEvent_t mark = events_.back()->get();
  SLIP_CUDA(cudaEventRecordWithFlags(mark, stream.stream_, cudaEventRecordExternal));
  return last_marks_[&stream] = mark;
}

void CudaGraph::open_span(CudaStream& stream, const Work& work, uint32_t item) {
  const auto open = open_spans_.find(&stream);
  if (open != open_spans_.end() && spans_[open->second].open.span.item == item) return;
  close_span(stream);
  open_spans_[&stream] = spans_.size();
  spans_.push_back(
      {&stream, {.span = {.kind = Span::Kind::work, .work = &work, .item = item}, .begin = last_marks_.at(&stream)}});
}

void CudaGraph::close_span(CudaStream& stream) {
  const auto open = open_spans_.find(&stream);
  if (open == open_spans_.end()) return;
  spans_[open->second].open.end = mark_on(stream);
  open_spans_.erase(open);
}

bool CudaGraph::ended() {
  core_->rethrow_if_failed();
  try {
    core_->enter();
    return !was_launched_ || SLIP_CUDA_READY(cudaEventQuery(end_->get()));
  } catch (...) {
    core_->fail(std::current_exception());
    throw;
  }
}

void CudaGraph::launch(uint32_t step) {
  core_->rethrow_if_failed();
  try {
    core_->enter();
    core_->step_range.enter(step);
    // The marks are about to be recorded again, so their times are read first.
    if (!ended()) SLIP_CUDA(cudaEventSynchronize(end_->get()));
    if (was_launched_) {
      for (CudaStream* stream : others()) stream->collect();
      origin_.collect();
    }
    for (CudaStream* stream : others()) {
      if (!std::exchange(stream->has_eager_work_, false)) continue;
      const EventHandle tail(cudaEventDisableTiming);  // other streams may still wait for it when it is destroyed
      SLIP_CUDA(cudaEventRecord(tail.get(), stream->stream_));
      SLIP_CUDA(cudaStreamWaitEvent(origin_.stream_, tail.get(), 0));
    }
    SLIP_CUDA(cudaGraphLaunch(exec_, origin_.stream_));
    SLIP_CUDA(cudaEventRecord(end_->get(), origin_.stream_));
    origin_.end_of_wait_.reset();
    was_launched_ = true;
    for (CudaStream* stream : others()) stream->graph_end_ = end_;
    for (CudaEvent* event : recorded_) {
      event->graph_end_ = end_;
      event->recorded_on_ = &origin_;
    }
    for (const Recorded& recorded : spans_) {
      recorded.stream->open_.push_back(recorded.open);
      CudaStream::Open& open = recorded.stream->open_.back();
      open.span.step = step;
      open.done = end_->get();
      open.kept_mark =
          recorded.stream->first_mark_ + recorded.stream->marks_.size();  // all eager marks so far are older
    }
  } catch (...) {
    core_->fail(std::current_exception());
    throw;
  }
}

void CudaStream::capture_work(CudaGraph& graph, const Work& work, const Frame& frame) {
  pause_before_work();
  graph.open_span(*this, work, frame.item);
  call(work, frame);
  if (graph.kind_ == GraphSpans::of_works) graph.close_span(*this);
}

void CudaStream::capture_wait(CudaGraph& graph, const CudaEvent& awaited, const Frame& frame) {
  // Records from before the capture are complete when the graph begins. The stream's own records come earlier in any
  // case.
  if (awaited.captured_in_ != &graph || awaited.captured_on_ == this) return;
  graph.close_span(*this);
  const cudaEvent_t begin = graph.last_marks_.at(this);
  SLIP_CUDA(cudaStreamWaitEvent(stream_, awaited.event_, 0));
  graph.spans_.push_back({this,
                          {.span = {.kind = Span::Kind::wait, .awaited = awaited.tag(), .item = frame.item},
                           .begin = begin,
                           .end = graph.mark_on(*this)}});
}

}  // namespace slipstream::cuda
