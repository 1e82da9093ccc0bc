// SPDX-License-Identifier: Apache-2.0
// One lock for everything: it is a model of order, not of speed.

#include "tests/fake_cuda/fake_cuda.h"

#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "engine/device/clock.h"

using slipstream::fake_cuda::Counts;
using slipstream::fake_cuda::Settings;

namespace {

struct Record {
  bool done = false;
  int64_t ns = 0;
};
using Op = std::function<void()>;

std::mutex mutex;
std::condition_variable& changed = *new std::condition_variable;  // threads of lost streams wait for it even at exit
Settings current_settings;
Counts current_counts;
std::map<std::string, cudaError_t> failures;
std::map<void*, int64_t> blocks;
int64_t taken_bytes = 0;
thread_local bool in_host_function = false;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;
std::atomic<cudaError_t> lost{cudaSuccess};
std::atomic<int64_t> commands{0};

/// Guarded device memory: one range of addresses, carved from the front, closed while nothing on the device runs.
struct Guarded {
  static constexpr size_t kRangeBytes = size_t{64} << 30;
  std::byte* base = nullptr;
  size_t carved_bytes = 0;
  int touching = 0;
  std::mutex guard;
  void protect(int protection) {
    if (carved_bytes > 0) mprotect(base, carved_bytes, protection);
  }
  std::byte* carve(size_t bytes) {
    const std::lock_guard lock_here(guard);
    if (!base) base = static_cast<std::byte*>(mmap(nullptr, kRangeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    std::byte* block = base + carved_bytes;
    carved_bytes += bytes;
    protect(touching > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
    return block;
  }
} guarded;

/// While one lives, device memory is open. (To all threads: a page has no owner. After a wait for the device none lives.)
struct Touch {
  Touch() {
    if (!current_settings.guard_memory) return;
    const std::lock_guard lock_here(guarded.guard);
    if (guarded.touching++ == 0) guarded.protect(PROT_READ | PROT_WRITE);
  }
  ~Touch() {
    if (!current_settings.guard_memory) return;
    const std::lock_guard lock_here(guarded.guard);
    if (--guarded.touching == 0) guarded.protect(PROT_NONE);
  }
  Touch(const Touch&) = delete;
  Touch& operator=(const Touch&) = delete;
};

}  // namespace

/// What begins on one stream and spreads to those that wait for it.
struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool spoiled = false;
  std::vector<Op> ops;                          // in the order of the calls, which is a legal one
  std::map<cudaStream_t, int> commands;         // by captured stream
  std::map<cudaStream_t, int> joined_commands;  // of that stream, how many the origin has waited for
};

struct CUevent_st {
  unsigned flags = 0;
  std::shared_ptr<Record> latest;
  std::shared_ptr<Capture> capture;  // the latest record was captured
  cudaStream_t captured_on = nullptr;
  int captured_command = 0;
};

struct CUstream_st {
  std::deque<Op> queue;
  bool busy = false, stopping = false;
  std::shared_ptr<Capture> capture;
  std::thread worker;
  CUstream_st() {
    worker = std::thread([this] { run(); });
  }
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || !queue.empty(); });
      if (queue.empty()) return;
      const Op op = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      op();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

struct CUgraph_st {
  std::vector<Op> ops;
};
struct CUgraphExec_st {
  std::vector<Op> ops;
};

namespace {

std::shared_ptr<Capture> open_capture;  // one at a time is enough here

cudaError_t leave(cudaError_t result) {
  if (result != cudaSuccess) last_error = result;
  return result;
}

/// Failures asked for, and the rule of host functions. Under the lock.
cudaError_t enter(const char* function) {
  if (in_host_function) return cudaErrorNotPermitted;
  if (lost != cudaSuccess) return lost;
  const auto failure = failures.find(function);
  if (failure == failures.end()) return cudaSuccess;
  const cudaError_t error = failure->second;
  failures.erase(failure);
  return error;
}

#define FAKE_ENTER(function)                    \
  std::unique_lock lock(mutex);                 \
  if (const cudaError_t entered = enter(function); entered != cudaSuccess) return leave(entered)

/// A call that is not safe while a stream is captured: it fails and the capture is spoiled.
bool refused_by_capture() {
  if (!open_capture || open_capture->mode == cudaStreamCaptureModeRelaxed) return false;
  if (open_capture->mode == cudaStreamCaptureModeThreadLocal && open_capture->thread != std::this_thread::get_id()) return false;
  open_capture->spoiled = true;
  return true;
}

cudaError_t push(cudaStream_t stream, Op op) {
  if (stream->capture) {
    if (stream->capture->spoiled) return cudaErrorStreamCaptureInvalidated;
    stream->capture->ops.push_back(std::move(op));
    ++stream->capture->commands[stream];
  } else {
    stream->queue.push_back(std::move(op));
    changed.notify_all();
  }
  return cudaSuccess;
}

void complete(const std::shared_ptr<Record>& record) {
  std::lock_guard lock(mutex);
  record->ns = slipstream::monotonic_ns() + current_settings.clock_ahead_ns;
  record->done = true;
  changed.notify_all();
}

Op copy_op(void* to, const void* from, size_t bytes) {
  return [=] {
    const Touch touch;
    std::memcpy(to, from, bytes);
  };
}

}  // namespace

namespace slipstream::fake_cuda {

void reset() {
  std::lock_guard lock(mutex);
  current_settings = {};
  current_counts.host_waits = current_counts.records = current_counts.waits = 0;
  failures.clear();
  last_error = lost = cudaSuccess;
  commands = 0;
}
Settings& settings() { return current_settings; }
Counts counts() {
  std::lock_guard lock(mutex);
  return current_counts;
}
cudaError_t enqueue(cudaStream_t stream, std::function<void()> command) {
  std::unique_lock lock(mutex);
  if (lost != cudaSuccess) return leave(lost);
  return leave(push(stream, [command = std::move(command)] {
    if (lost != cudaSuccess) return;
    if (commands++ >= current_settings.lost_after) {
      lost = cudaErrorDevicesUnavailable;
      return;
    }
    try {
      const Touch touch;
      command();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      lost = cudaErrorLaunchFailure;
    }
  }));
}
void fail_next(const std::string& function, cudaError_t error) {
  std::lock_guard lock(mutex);
  failures[function] = error;
}

}  // namespace slipstream::fake_cuda

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : error == cudaErrorNotReady ? "not ready" : "an error of the fake";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfTheFake";
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = current_settings.driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  FAKE_ENTER("cudaGetDeviceCount");
  *count = 0;
  if (current_settings.driver < CUDART_VERSION) return leave(cudaErrorInsufficientDriver);
  if (current_settings.devices == 0) return leave(cudaErrorNoDevice);
  *count = current_settings.devices;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  FAKE_ENTER("cudaGetDeviceProperties");
  if (device < 0 || device >= current_settings.devices) return leave(cudaErrorInvalidDevice);
  *properties = {};
  properties->uuid.bytes[15] = static_cast<char>(device + 1);
  std::string("Fake GPU").copy(properties->name, sizeof properties->name - 1);
  properties->major = 9;
  properties->multiProcessorCount = 2;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  FAKE_ENTER("cudaDeviceGetAttribute");
  if (device < 0 || device >= current_settings.devices) return leave(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrGlobalMemoryBusWidth ? 512 : 1'000'000;
  return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) {
  FAKE_ENTER("cudaInitDevice");
  return leave(device >= 0 && device < current_settings.devices ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaSetDevice(int device) {
  FAKE_ENTER("cudaSetDevice");
  if (device < 0 || device >= current_settings.devices) return leave(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  FAKE_ENTER("cudaDeviceSynchronize");
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureUnsupported);
  ++current_counts.host_waits;
  return cudaSuccess;  // only what the default stream does must be complete, and that runs at once here
}

cudaError_t cudaMalloc(void** block, size_t size) {
  FAKE_ENTER("cudaMalloc");
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureUnsupported);
  const auto bytes = static_cast<int64_t>(size);
  if (bytes > current_settings.memory_bytes - taken_bytes) return leave(cudaErrorMemoryAllocation);
  // Aligned as promised and no better, and not zero.
  const size_t taken = (size + 8191) / 4096 * 4096;
  const Touch touch;
  auto* memory = current_settings.guard_memory ? guarded.carve(taken) : static_cast<std::byte*>(std::aligned_alloc(4096, taken));
  std::memset(memory, 0xCD, size + 256);
  *block = memory + 256;
  blocks[*block] = bytes;
  taken_bytes += bytes;
  ++current_counts.blocks;
  return cudaSuccess;
}
cudaError_t cudaFree(void* block) {
  FAKE_ENTER("cudaFree");
  if (!block) return cudaSuccess;
  const auto found = blocks.find(block);
  if (found == blocks.end()) return leave(cudaErrorInvalidValue);
  taken_bytes -= found->second;
  blocks.erase(found);
  if (!current_settings.guard_memory) std::free(static_cast<std::byte*>(block) - 256);
  --current_counts.blocks;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  FAKE_ENTER("cudaMemGetInfo");
  *free = static_cast<size_t>(current_settings.memory_bytes - taken_bytes);
  *total = static_cast<size_t>(current_settings.memory_bytes);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** block, size_t size, unsigned int) {
  FAKE_ENTER("cudaHostAlloc");
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureUnsupported);
  *block = std::malloc(size);
  ++current_counts.pinned_blocks;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* block) {
  FAKE_ENTER("cudaFreeHost");
  std::free(block);
  --current_counts.pinned_blocks;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* block, int value, size_t bytes) {
  FAKE_ENTER("cudaMemset");
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureImplicit);
  const Touch touch;
  std::memset(block, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* block, int value, size_t bytes, cudaStream_t stream) {
  FAKE_ENTER("cudaMemsetAsync");
  return leave(push(stream, [=] {
    const Touch touch;
    std::memset(block, value, bytes);
  }));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  FAKE_ENTER("cudaMemcpyAsync");
  return leave(push(stream, copy_op(to, from, bytes)));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  FAKE_ENTER("cudaStreamCreateWithPriority");
  *stream = new CUstream_st;
  ++current_counts.streams;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    std::unique_lock lock(mutex);  // works on a lost GPU too
    stream->stopping = true;
    --current_counts.streams;
    changed.notify_all();
  }
  stream->worker.join();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FAKE_ENTER("cudaStreamSynchronize");
  if (!stream) return leave(refused_by_capture() ? cudaErrorStreamCaptureImplicit : cudaSuccess);  // its works run at once here
  if (stream->capture) {
    stream->capture->spoiled = true;
    return leave(cudaErrorStreamCaptureUnsupported);
  }
  ++current_counts.host_waits;
  changed.wait(lock, [&] { return stream->queue.empty() && !stream->busy; });
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
  return leave(push(stream, [record = event->latest] {
    std::unique_lock inner(mutex);
    changed.wait(inner, [&] { return record->done; });
  }));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  FAKE_ENTER("cudaLaunchHostFunc");
  return leave(push(stream, [=] {
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
    return leave(stream->capture->spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
  }
  event->capture.reset();
  event->latest = std::make_shared<Record>();
  if (current_settings.record_elsewhere && (event->flags & cudaEventBlockingSync)) {
    event->latest->ns = slipstream::monotonic_ns() + current_settings.clock_ahead_ns;
    event->latest->done = true;
    return cudaSuccess;
  }
  return leave(push(stream, [record = event->latest] { complete(record); }));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  if (!(flags & cudaEventRecordExternal)) return cudaEventRecord(event, stream);
  FAKE_ENTER("cudaEventRecordWithFlags");
  ++current_counts.records;
  if (!stream->capture) return leave(cudaErrorIllegalState);
  // A node of the graph: every run of it is a record. Until the first, the event is as before.
  return leave(push(stream, [event] {
    std::lock_guard inner(mutex);
    event->latest = std::make_shared<Record>(Record{true, slipstream::monotonic_ns() + current_settings.clock_ahead_ns});
    changed.notify_all();
  }));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  FAKE_ENTER("cudaEventQuery");
  if (event->capture) {
    event->capture->spoiled = true;
    return leave(cudaErrorCapturedEvent);
  }
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureUnsupported);
  return leave(!event->latest || event->latest->done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  FAKE_ENTER("cudaEventSynchronize");
  if (event->capture) {
    event->capture->spoiled = true;
    return leave(cudaErrorCapturedEvent);
  }
  if (refused_by_capture()) return leave(cudaErrorStreamCaptureUnsupported);
  ++current_counts.host_waits;
  if (const std::shared_ptr<Record> record = event->latest) changed.wait(lock, [&] { return record->done; });
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

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  FAKE_ENTER("cudaStreamBeginCapture");
  if (open_capture || stream->capture) return leave(cudaErrorIllegalState);
  open_capture = std::make_shared<Capture>();
  open_capture->origin = stream;
  open_capture->mode = mode;
  open_capture->thread = std::this_thread::get_id();
  stream->capture = open_capture;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  FAKE_ENTER("cudaStreamIsCapturing");
  *status = !stream->capture           ? cudaStreamCaptureStatusNone
            : stream->capture->spoiled ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  FAKE_ENTER("cudaStreamEndCapture");
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture || capture->origin != stream) return leave(cudaErrorStreamCaptureUnmatched);
  bool unjoined = false;
  for (const auto& [captured, commands] : capture->commands) {
    captured->capture.reset();
    unjoined |= captured != stream && capture->joined_commands[captured] != commands;
  }
  stream->capture.reset();
  open_capture.reset();
  if (capture->spoiled) return leave(cudaErrorStreamCaptureInvalidated);
  if (unjoined) return leave(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{capture->ops};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  FAKE_ENTER("cudaGraphInstantiate");
  *exec = new CUgraphExec_st{graph->ops};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  FAKE_ENTER("cudaGraphLaunch");
  return leave(push(stream, [ops = exec->ops] {
    for (const Op& op : ops) op();
  }));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

}  // extern "C"
