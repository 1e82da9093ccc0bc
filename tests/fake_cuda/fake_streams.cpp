// SPDX-License-Identifier: Apache-2.0
// Streams are host threads, events are records of their order.

#include <algorithm>

#include "tests/fake_cuda/machine.h"

using namespace slipstream::fake_cuda::detail;

void slipstream::fake_cuda::wait_for_all() {
  std::unique_lock lock(mutex);
  changed.wait(lock, are_idle);
}

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int priority) {
  FAKE_ENTER("cudaStreamCreateWithPriority");
  *stream = new CUstream_st;
  (*stream)->priority = priority;
  streams.insert(*stream);
  ++current_counts.streams;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    std::unique_lock lock(mutex);  // the GPU may be lost
    stream->stopping = true;
    --current_counts.streams;
    stream->filled.notify_one();
  }
  stream->worker.join();
  {
    const std::lock_guard lock(mutex);
    streams.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FAKE_ENTER("cudaStreamSynchronize");
  if (!stream)
    return leave(refused_by_capture() ? cudaErrorStreamCaptureImplicit
                                      : cudaSuccess);  // its works run at once in this fake
  if (stream->capture) {
    stream->capture->spoiled = true;
    return leave(cudaErrorStreamCaptureUnsupported);
  }
  ++current_counts.host_waits;
  changed.wait(lock, [&] { return stream->queue.empty() && !stream->busy; });
  guarded.close();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  FAKE_ENTER("cudaStreamWaitEvent");
  ++current_counts.waits;
  if (event->capture) {
    if (stream->capture && stream->capture != event->capture) return leave(cudaErrorStreamCaptureMerge);
    stream->capture = event->capture;  // the capture spreads
    Capture& capture = *stream->capture;
    capture.commands.try_emplace(stream, 0);
    if (!current_settings.drop_captured_waits) capture.awaited[stream].merge(Nodes(event->captured_before));
    if (stream == capture.origin) {
      int& joined = capture.joined_commands[event->captured_on];
      joined = std::max(joined, event->captured_command);
    }
    return cudaSuccess;
  }
  if (stream->capture) {
    stream->capture->spoiled = true;
    return leave(cudaErrorStreamCaptureIsolation);
  }
  if (!event->latest || current_settings.drop_waits) return cudaSuccess;
  return leave(push_when_free(lock, stream, [record = event->latest] {
    std::unique_lock inner(mutex);
    record->completed.wait(inner, [&] { return record->done; });
  }));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  FAKE_ENTER("cudaLaunchHostFunc");
  return leave(push_when_free(lock, stream, [=] {
    if (lost != cudaSuccess) return;           // the function is not called after an error
    static std::mutex& one = *new std::mutex;  // functions of all streams may be serialised, so they are
    const std::lock_guard alone(one);
    in_host_function = true;
    function(data);
    in_host_function = false;
  }));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  FAKE_ENTER("cudaEventCreateWithFlags");
  *event = new CUevent_st;
  (*event)->flags = flags;
  ++current_counts.events;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  FAKE_ENTER("cudaEventDestroy");
  delete event;
  --current_counts.events;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FAKE_ENTER("cudaEventRecord");
  ++current_counts.records;
  if (stream->capture) {
    event->capture = stream->capture;
    event->captured_on = stream;
    event->captured_command = stream->capture->commands[stream];
    event->captured_before = stream->capture->awaited[stream];
    return leave(stream->capture->spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
  }
  event->capture.reset();
  event->latest = std::make_shared<Record>();
  if (current_settings.record_elsewhere && (event->flags & cudaEventBlockingSync)) {
    event->latest->ns = device_ns();
    event->latest->done = true;
    return cudaSuccess;
  }
  return leave(push_when_free(lock, stream, [record = event->latest] { complete(record); }));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  if (!(flags & cudaEventRecordExternal)) return cudaEventRecord(event, stream);
  FAKE_ENTER("cudaEventRecordWithFlags");
  ++current_counts.records;
  if (!stream->capture) return leave(cudaErrorIllegalState);
  // A node of the graph: every run of it is a record. Until the first, the event is as before.
  return leave(push_when_free(lock, stream, [event] {
    if (lost != cudaSuccess) return;  // no stream waits for the event, and it may be gone
    std::lock_guard inner(mutex);
    event->latest = std::make_shared<Record>();
    event->latest->ns = device_ns();
    event->latest->done = true;
  }));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  FAKE_ENTER("cudaEventQuery");
  if (event->capture) {
    event->capture->spoiled = true;
    return leave(cudaErrorCapturedEvent);
  }
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureUnsupported);
  if (event->latest && !event->latest->done) return leave(cudaErrorNotReady);
  guarded.close();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  FAKE_ENTER("cudaEventSynchronize");
  if (event->capture) {
    event->capture->spoiled = true;
    return leave(cudaErrorCapturedEvent);
  }
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureUnsupported);
  ++current_counts.host_waits;
  if (const std::shared_ptr<Record> record = event->latest) record->completed.wait(lock, [&] { return record->done; });
  guarded.close();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  FAKE_ENTER("cudaEventElapsedTime");
  if (((start->flags | end->flags) & cudaEventDisableTiming) || !start->latest || !end->latest)
    return leave(cudaErrorInvalidResourceHandle);
  if (!start->latest->done || !end->latest->done) return leave(cudaErrorNotReady);
  *ms = static_cast<float>(static_cast<double>(end->latest->ns - start->latest->ns) / 1e6);
  return cudaSuccess;
}

}  // extern "C"
