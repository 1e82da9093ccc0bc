// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams, events and memory of one rank. They order works and compute nothing.
//
// Source of the semantics: the CUDA runtime's streams and events. A stream runs its commands in order. An event marks
// the most recent `record` on a stream. A `wait` captures the record that is most recent at the time of the call.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/work.h"

namespace slipstream {

/// One action of a stream: it ran a work or waited for an event.
struct Span {
  enum class Kind : uint8_t { work, wait };
  Kind kind = Kind::work;
  const Work* work = nullptr;  // for a work; outlives the span (works are bound once)
  uint64_t awaited = 0;        // for a wait: the tag of the event
  uint32_t item = 0;           // Frame::item
  uint32_t step = 0;           // Frame::step
  int64_t begin_ns = 0;        // on the device's clock
  int64_t end_ns = 0;
  // These fields are filled in for long spans where a thread of the host runs the stream.
  int64_t ready_ns = 0;         // how long the thread waited for a core during the span
  int64_t ready_before_ns = 0;  // how long it waited for a core before the span, since the last reading
  int64_t asleep_ns = 0;        // of a work on one thread: how long it neither ran nor waited for a core
  int64_t link_ns = -1;         // for communication: see note_link_ns(); -1: not known
};

class Event {
 public:
  virtual ~Event() = default;
  /// Blocks. Returns when the most recent record has completed, or at once if there was none. Throws: the first error
  /// of the device's streams.
  virtual void synchronize() = 0;
  /// Pure. Returns true if the most recent record has completed, or if there was none.
  virtual bool query() const = 0;
  /// Returns the time on the device's clock at which the most recent completed record completed.
  virtual int64_t completed_ns() const = 0;
  /// Returns the number that was passed to make_event. It identifies the awaited item of a wait in timelines.
  virtual uint64_t tag() const = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;

  /// Enqueues. Runs `work` after all earlier commands of this stream. Borrows `work` and the data that `frame` points
  /// to until the work has run.
  virtual void launch(const Work& work, const Frame& frame) = 0;
  /// Enqueues. `event` completes when all earlier commands of this stream have run.
  virtual void record(Event& event) = 0;
  /// Enqueues. Later commands of this stream run after the most recent record of `event`. If it was never recorded,
  /// they do not wait. `frame` tags the wait in the timeline.
  virtual void wait(const Event& event, const Frame& frame) = 0;
  /// Blocks. Returns when the stream is empty. Throws: the first error of the device's streams.
  virtual void synchronize() = 0;
  virtual const std::string& name() const = 0;

  /// Appends the spans that finished since the last call to `spans`. The caller first waits for an event that covers
  /// them.
  virtual void drain(std::vector<Span>& spans) = 0;
};

struct StreamOptions {
  std::string name;
  int threads = 1;             // cpu: intra-op threads, including the stream's own
  bool high_priority = false;  // communication: short, and other streams wait for it
};

/// Memory that is allocated and freed once, zeroed, and aligned to 4 KiB.
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual std::byte* data() = 0;
  virtual int64_t size_bytes() const = 0;
};

/// Which spans the works of a graph have. Every span ends with an event that the graph records on the GPU.
enum class GraphSpans : uint8_t {
  of_items,  // one for the works of an item up to a record or a wait, named after the first work: enough for metrics
  of_works,  // one for each work, as a timeline shows them
};

/// Works of several streams that were recorded once and that one launch of the host runs again.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Enqueues. Runs the recorded works after all earlier commands of the device's streams. Later commands on any of
  /// them run after it. The graph's events count as recorded now, all of them at the graph's end. Its spans are tagged
  /// with `step`. Before the call, the previous launch must have ended and the caller must then have called
  /// Work::prepare of the works that have one.
  virtual void launch(uint32_t step) = 0;
  /// Does not wait. Returns true if the latest launch has ended, or if there was none.
  virtual bool ended() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::unique_ptr<Stream> make_stream(const StreamOptions& options) = 0;
  virtual std::unique_ptr<Event> make_event(uint64_t tag = 0) = 0;
  /// Throws: ResourceError with the requested and the free size.
  virtual std::unique_ptr<Allocation> allocate(int64_t size_bytes, const std::string& name) = 0;
  /// Allocates host memory that stream copies can access without a wait of the host; on cpu this is ordinary memory. It
  /// counts like allocate().
  virtual std::unique_ptr<Allocation> allocate_host(int64_t size_bytes, const std::string& name) {
    return allocate(size_bytes, name);
  }
  /// Pins host memory that the caller keeps: stream copies can access it without a wait of the host while the result
  /// lives. Returns null on cpu.
  /// Throws: ResourceError.
  virtual std::shared_ptr<void> pin(std::byte* /*memory*/, int64_t /*size_bytes*/) { return {}; }
  /// Records commands instead of running them: what `issue` gives to the device's streams becomes a graph, which has
  /// not run yet. The graph leaves out waits for earlier events, because a launch waits for all earlier commands.
  /// `origin` carries the launches. Returns null without calling `issue` on a device without graphs. Throws: the first
  /// error of the device's streams, or the error of a command that cannot be recorded. In the second case nothing has
  /// run, the events of `issue` count as recorded now, and the caller may call `issue` without a capture.
  virtual std::unique_ptr<Graph> capture(Stream& /*origin*/, const std::function<void()>& /*issue*/,
                                         GraphSpans /*spans*/) {
    return nullptr;
  }
  /// Blocks until the copy is done. It is for set-up, evaluation and saving, and never used inside a step.
  virtual void copy_to_host(void* host, const std::byte* device, int64_t size_bytes) = 0;
  virtual void copy_from_host(std::byte* device, const void* host, int64_t size_bytes) = 0;
  /// Returns the time on the clock of spans and events.
  virtual int64_t now_ns() const = 0;
  /// Returns the number of allocate calls so far. A step asserts that it did not change.
  virtual int64_t allocation_count() const = 0;
  /// Returns the number of calls so far in which the host waited: synchronize() of events and streams, and copies.
  /// Issuing a step asserts that it did not change.
  virtual int64_t host_wait_count() const = 0;

  /// Adds a random pause of at most `max_ns` before every work on any stream. The pause is a function of (seed, stream
  /// name, count). Results must not change, so this tests every wait. It has no effect on sim.
  virtual void inject_delays(uint64_t seed, int64_t max_ns) = 0;
};

/// After the first work that throws, on any of its streams, later works are skipped. Events still complete, so that no
/// stream hangs.
std::unique_ptr<Device> make_cpu_device();
/// Throws: ResourceError if this build or this machine has no CUDA.
std::unique_ptr<Device> make_cuda_device(int index);
/// The rates of virtual time. Works take their time at these rates, nothing runs, and memory is counted but not
/// allocated.
struct SimRates {
  double flops_per_second = 1e12;
  double bytes_per_second = 1e11;
};
std::unique_ptr<Device> make_sim_device(const SimRates& rates);

}  // namespace slipstream
