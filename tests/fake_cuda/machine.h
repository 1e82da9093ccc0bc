// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of the fake machine, shared by the files that implement the runtime's calls. One lock protects everything:
// the fake models order, not speed.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/device/clock.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace slipstream::fake_cuda::detail {

struct Record {
  bool done = false;
  int64_t ns = 0;
  std::condition_variable completed = {};
};
using Op = std::function<void()>;

inline std::mutex mutex;
// Notified when a stream has become idle or its queue has room. Threads of lost streams wait for it even at exit.
inline std::condition_variable& changed = *new std::condition_variable;
inline Settings current_settings;
inline Counts current_counts;
inline std::map<std::string, cudaError_t> failures;
struct Block {
  int64_t bytes = 0;            // requested bytes
  int64_t taken_of_device = 0;  // at least as many as were requested
  bool of_library = false;
};
inline std::map<void*, Block> blocks;
inline int64_t taken_bytes = 0;
inline thread_local bool in_host_function = false;
inline thread_local int running_priority = 0;  // the priority of the command that this thread runs
inline thread_local std::string work_name;     // the work whose commands this thread captures
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local int current_device = 0;
inline std::atomic<cudaError_t> lost{cudaSuccess};
inline std::atomic<int64_t> commands{0};
inline int64_t clock_origin_ns = slipstream::monotonic_ns();
/// The time on the GPU's clock.
inline int64_t device_ns() {
  const int64_t host_ns = slipstream::monotonic_ns();
  return host_ns +
         static_cast<int64_t>(current_settings.clock_ppm * 1e-6 * static_cast<double>(host_ns - clock_origin_ns));
}

/// Guarded device memory: one range of addresses, carved from the front, closed while the device is idle and when the
/// host returns from a wait while no command runs. Opening and closing costs as much as a small kernel, so memory stays
/// open between the commands of busy streams.
struct Guarded {
  static constexpr size_t kRangeBytes = size_t{64} << 30;
  std::byte* base = nullptr;
  size_t carved_bytes = 0;
  int touching = 0;
  bool open = false;
  std::mutex guard;
  void protect(int protection) {
    if (carved_bytes > 0) mprotect(base, carved_bytes, protection);
  }
  std::byte* carve(size_t bytes) {
    const std::lock_guard lock_here(guard);
    if (!base)
      base = static_cast<std::byte*>(
          mmap(nullptr, kRangeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    std::byte* block = base + carved_bytes;
    carved_bytes += bytes;
    protect(open ? PROT_READ | PROT_WRITE : PROT_NONE);
    return block;
  }
  void close() {
    const std::lock_guard lock_here(guard);
    if (touching == 0 && std::exchange(open, false)) protect(PROT_NONE);
  }
};
inline Guarded guarded;

/// While an object exists, device memory is open (to all threads: a page has no owner).
struct Touch {
  Touch() {
    if (!current_settings.guard_memory) return;
    const std::lock_guard lock_here(guarded.guard);
    ++guarded.touching;
    if (!std::exchange(guarded.open, true)) guarded.protect(PROT_READ | PROT_WRITE);
  }
  ~Touch() {
    if (!current_settings.guard_memory) return;
    const std::lock_guard lock_here(guarded.guard);
    --guarded.touching;
  }
  Touch(const Touch&) = delete;
  Touch& operator=(const Touch&) = delete;
};

/// Closes device memory if no stream has a command left. Call it under the lock.
void close_when_idle();

/// Commands of a graph, by number in the order of their calls.
using Nodes = std::set<size_t>;

/// The commands of one captured stream, which run in their order, each after others of the graph.
struct Lane {
  struct Node {
    size_t number = 0;
    Nodes behind;
    Op op;
    std::string work;
    bool is_kernel = false, begins_early = false;
  };
  int priority = 0;
  std::vector<Node> nodes;
};

/// A launched kernel (fake_kernels.cpp).
struct Grid;

/// A capture begins on one stream and spreads to those that wait for it.
struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool spoiled = false;
  std::map<cudaStream_t, Lane> lanes;
  std::map<cudaStream_t, Nodes> awaited;  // predecessors of the next command of a captured stream
  size_t nodes = 0;
  uint64_t number = 0;                          // of this capture
  std::vector<Op> at_launches;                  // called by every launch of the graph
  std::map<cudaStream_t, int> commands;         // counts, by captured stream
  std::map<cudaStream_t, int> joined_commands;  // how many commands of that stream the origin has waited for
};

}  // namespace slipstream::fake_cuda::detail

struct CUevent_st {
  unsigned flags = 0;
  std::shared_ptr<slipstream::fake_cuda::detail::Record> latest;
  std::shared_ptr<slipstream::fake_cuda::detail::Capture> capture;  // null unless the latest record was captured
  cudaStream_t captured_on = nullptr;
  int captured_command = 0;
  slipstream::fake_cuda::detail::Nodes captured_before;
};

struct CUstream_st {
  std::deque<slipstream::fake_cuda::detail::Op> queue;
  std::condition_variable filled;  // commands were added, or the stream stops
  bool busy = false, stopping = false;
  int priority = 0;
  std::shared_ptr<slipstream::fake_cuda::detail::Capture> capture;
  std::shared_ptr<slipstream::fake_cuda::detail::Grid> newest;  // null unless the newest command is a kernel
  std::thread worker;
  CUstream_st() {
    worker = std::thread([this] { run(); });
  }
  void run() {
    std::unique_lock lock(slipstream::fake_cuda::detail::mutex);
    while (true) {
      filled.wait(lock, [&] { return stopping || !queue.empty(); });
      if (queue.empty()) return;
      const slipstream::fake_cuda::detail::Op op = std::move(queue.front());
      if (queue.size() >= slipstream::fake_cuda::detail::current_settings.queue_limit)
        slipstream::fake_cuda::detail::changed.notify_all();  // threads that wait for room see it when the lock is open
      queue.pop_front();
      busy = true;
      lock.unlock();
      slipstream::fake_cuda::detail::running_priority = priority;
      op();
      lock.lock();
      busy = false;
      if (!queue.empty()) continue;
      slipstream::fake_cuda::detail::close_when_idle();
      slipstream::fake_cuda::detail::changed.notify_all();
    }
  }
};

struct CUgraph_st {
  std::vector<slipstream::fake_cuda::detail::Lane> lanes;
  std::vector<slipstream::fake_cuda::detail::Op> at_launches;
};
struct CUgraphExec_st {
  bool keeps_node_priority = false;
  CUgraph_st graph;
};

namespace slipstream::fake_cuda::detail {

inline std::set<cudaStream_t> streams;         // that exist
inline std::shared_ptr<Capture> open_capture;  // one at a time is enough here
inline uint64_t captures_begun = 0;
inline std::vector<GraphNode> last_captured;

/// Tells whether every stream has run all its commands.
inline bool are_idle() {
  return std::all_of(streams.begin(), streams.end(),
                     [](cudaStream_t stream) { return stream->queue.empty() && !stream->busy; });
}

inline void close_when_idle() {
  if (current_settings.guard_memory && are_idle()) guarded.close();
}

inline cudaError_t leave(cudaError_t result) {
  if (result != cudaSuccess) last_error = result;
  return result;
}

/// Returns requested failures, and applies the rule of host functions. Call it under the lock.
inline cudaError_t enter(const char* function) {
  if (in_host_function) return cudaErrorNotPermitted;
  if (lost != cudaSuccess) return lost;
  const auto failure = failures.find(function);
  if (failure == failures.end()) return cudaSuccess;
  const cudaError_t error = failure->second;
  failures.erase(failure);
  return error;
}

#define FAKE_ENTER(function)    \
  std::unique_lock lock(mutex); \
  if (const cudaError_t entered = enter(function); entered != cudaSuccess) return leave(entered)

/// A call that is not safe while a stream is captured: it fails and the capture is spoiled.
inline bool refused_by_capture() {
  if (!open_capture || open_capture->mode == cudaStreamCaptureModeRelaxed) return false;
  if (open_capture->mode == cudaStreamCaptureModeThreadLocal && open_capture->thread != std::this_thread::get_id())
    return false;
  open_capture->spoiled = true;
  return true;
}

inline cudaError_t push(cudaStream_t stream, Op op) {
  stream->newest.reset();
  if (stream->capture) {
    if (stream->capture->spoiled) return cudaErrorStreamCaptureInvalidated;
    Capture& capture = *stream->capture;
    Lane& lane = capture.lanes[stream];
    lane.priority = stream->priority;
    const size_t number = capture.nodes++;
    lane.nodes.push_back({number, std::exchange(capture.awaited[stream], {number}), std::move(op), work_name});
    ++capture.commands[stream];
  } else {
    stream->queue.push_back(std::move(op));
    stream->filled.notify_one();
  }
  return cudaSuccess;
}

/// Blocks, as the runtime's calls do, while the stream's queue is full.
inline cudaError_t push_when_free(std::unique_lock<std::mutex>& lock, cudaStream_t stream, Op op) {
  if (!stream->capture) changed.wait(lock, [&] { return stream->queue.size() < current_settings.queue_limit; });
  return push(stream, std::move(op));
}

inline void complete(const std::shared_ptr<Record>& record) {
  std::lock_guard lock(mutex);
  record->ns = device_ns();
  record->done = true;
  record->completed.notify_all();
}

}  // namespace slipstream::fake_cuda::detail
