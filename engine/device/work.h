// SPDX-License-Identifier: Apache-2.0
#pragma once
// A piece of work as data: its name, cost, declared accesses and function.
//
// Works are bound once, when a model or a communicator is built, and launched in every step. They name memory by Slice
// and never by pointer, so that a work can be printed, priced and proved before any memory exists.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/parallel.h"
#include "engine/device/cost.h"
#include "engine/device/meaning.h"

namespace slipstream {

enum class DeviceKind : uint8_t { cpu, cuda, sim };

using BufferId = uint32_t;

/// The bytes [begin_bytes, begin_bytes + size_bytes) of a buffer.
struct Slice {
  BufferId buffer = 0;
  int64_t begin_bytes = 0;
  int64_t size_bytes = 0;

  int64_t end_bytes() const { return begin_bytes + size_bytes; }
  bool overlaps(const Slice& other) const {
    return buffer == other.buffer && begin_bytes < other.end_bytes() && other.begin_bytes < end_bytes();
  }
  bool operator==(const Slice&) const = default;
};

/// Selects the copy of a buffer that an item of the plan uses.
enum class Instances : uint8_t {
  one,              // the same bytes for every item
  per_micro_batch,  // copy number frame.micro_batch
  per_slot,         // copy number frame.slot (micro-batches in flight under a pipeline)
};

/// Maps a sharded parameter to its gathered slot: for one item of the plan, `from` (a whole buffer) is at `to`.
struct Rebind {
  BufferId from = 0;
  Slice to;
};

/// The base addresses of all buffers of a rank. Views are resolved when it is built, so that a look-up is one addition.
class Memory {
 public:
  struct Entry {
    std::byte* base = nullptr;
    int64_t stride_bytes = 0;  // distance between instances
    Instances instances = Instances::one;
  };

  Memory() = default;
  explicit Memory(std::vector<Entry> entries) : entries_(std::move(entries)) {}
  const Entry& entry(BufferId buffer) const { return entries_[buffer]; }
  size_t size() const { return entries_.size(); }

 private:
  std::vector<Entry> entries_;
};

/// The period of Frame::step: a work may depend on the step only through step modulo this, so that a device can record
/// the runs of as many steps and replay them.
constexpr uint32_t kStepPeriod = 4;

/// The position of a launch in the plan. A frame is small and copied into the queue.
struct Frame {
  const Memory* memory = nullptr;
  const Rebind* rebinds = nullptr;
  uint32_t rebind_count = 0;
  uint32_t item = 0;  // the item's number in timelines: see Job::first_item()
  uint32_t step = 0;  // tags the timeline; see kStepPeriod
  int32_t micro_batch = 0;
  int32_t slot = 0;
  bool accumulate = false;      // gradients are added to the buffer instead of replacing it
  int32_t multiprocessors = 0;  // as SpineItem::multiprocessors
};

/// The environment of a running work. On cpu the function runs on the stream's thread. On cuda it runs on the host at
/// launch and enqueues kernels on `native_stream`. On sim it never runs.
struct LaunchContext {
  DeviceKind kind = DeviceKind::cpu;
  ThreadPool* pool = nullptr;     // cpu: intra-op threads of this stream; never null on cpu
  void* native_stream = nullptr;  // cuda: the cudaStream_t
  const Frame* frame = nullptr;

  /// Pure. Returns the address of `slice` for the item that is running.
  std::byte* at(const Slice& slice) const {
    BufferId buffer = slice.buffer;
    int64_t offset = slice.begin_bytes;
    for (uint32_t i = 0; i < frame->rebind_count; ++i)
      if (frame->rebinds[i].from == buffer) {
        offset += frame->rebinds[i].to.begin_bytes;
        buffer = frame->rebinds[i].to.buffer;
        break;
      }
    const Memory::Entry& entry = frame->memory->entry(buffer);
    const int64_t instance = entry.instances == Instances::one               ? 0
                             : entry.instances == Instances::per_micro_batch ? frame->micro_batch
                                                                             : frame->slot;
    return entry.base + instance * entry.stride_bytes + offset;
  }
  template <typename T>
  T* as(const Slice& slice) const {
    return reinterpret_cast<T*>(at(slice));
  }

  /// Runs `body` on the host after all earlier and before all later commands of this stream: at once on cpu, enqueued
  /// on cuda. On cuda, `body` may not throw, call CUDA or wait: bodies of different streams may run one after the
  /// other, and a sleeping body would delay NCCL's own.
  void on_host(std::function<void()> body) { enqueue_on_host ? enqueue_on_host(*this, std::move(body)) : body(); }
  void (*enqueue_on_host)(LaunchContext&, std::function<void()>) = nullptr;
  void* stream = nullptr;  // the device's stream, for enqueue_on_host

  /// Blocks. Splits [0, count) over the intra-op threads (see ThreadPool::parallel_for).
  void parallel_for(int64_t count, int64_t grain, RangeFunction body) const { pool->parallel_for(count, grain, body); }
};

struct Work {
  std::string name;  // appears in the trace and in every error message
  Cost cost;
  std::vector<Slice> reads;   // all bytes it may read before writing them
  std::vector<Slice> writes;  // all bytes it may write
  std::function<void(LaunchContext&)> fn;
  /// The host's part of each run on cuda, where a graph may have recorded fn long ago without calling it again. The
  /// issuer of a plan calls it once per run, before the first launch; empty on cpu and sim.
  std::function<void(LaunchContext&)> prepare = {};
  Meaning meaning = {};
};

}  // namespace slipstream
