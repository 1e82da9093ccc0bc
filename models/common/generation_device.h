// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where text generation runs. On the CPU it runs on the calling thread. On a GPU it runs as works of one stream, which
// are recorded once and run again.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/device.h"

namespace slipstream::models {

/// Owns the device, its stream, and memory that buffers have outgrown. On the CPU all memory is the host's, and nothing
/// is copied.
class GenerationDevice {
 public:
  /// The number of passes that the host may have issued without waiting for them.
  static constexpr size_t kTurns = 2;

  /// A null device means the CPU with this number of threads. These threads also convert weights for a GPU. `records`
  /// tells repeat() to record works.
  GenerationDevice(std::unique_ptr<Device> device, int threads, bool records);
  ~GenerationDevice();
  GenerationDevice(const GenerationDevice&) = delete;
  GenerationDevice& operator=(const GenerationDevice&) = delete;

  DeviceKind kind() const { return device_->kind(); }
  std::unique_ptr<Allocation> allocate(int64_t size_bytes, const std::string& name) {
    return device_->allocate(size_bytes, name);
  }
  /// Allocates host memory that stream copies read and write without a wait of the host.
  std::unique_ptr<Allocation> allocate_host(int64_t size_bytes, const std::string& name) {
    return device_->allocate_host(size_bytes, name);
  }
  /// Returns the context of the ops that the body of run() and repeat() calls.
  LaunchContext& context() { return context_; }

  /// Enqueues on a GPU and blocks on the CPU. Throws: what body() throws, and errors of the device.
  template <typename Body>
  void run(size_t turn, const Body& body) {
    if (!stream_) return body();
    set(body);
    issue(turn);
  }
  /// Does the same as run() for a body that enqueues the same works in every call with the same turn and key, if it
  /// allocates no memory. The second such call records them as a graph, and later calls run it.
  template <typename Body>
  void repeat(size_t turn, int64_t key, const Body& body) {
    if (!stream_) return body();
    set(body);
    repeat(turn, key);
  }
  /// Blocks until the latest works of run() or repeat() with this turn have ended.
  void wait(size_t turn);
  /// Blocks until all works have ended.
  void finish();

  /// Memory that grows. Its contents do not survive.
  using Scratch = std::unique_ptr<Allocation>;
  /// Returns memory of at least this many floats.
  float* floats(Scratch& at, int64_t elems);

  /// Blocks. Converts floats of the host to memory of the device.
  void store(std::span<const float> from, std::byte* to, DType dtype);
  /// Blocks. Copies bytes of the host to memory of the device that no enqueued work uses.
  void write(void* to, const void* from, int64_t size_bytes);
  /// Blocks until all works have ended. Returns these floats in memory that the host can read, valid until the next
  /// call. After the caller has changed them, it calls to_device().
  std::span<float> to_host(float* at, int64_t elems);
  void to_device(std::span<const float> of_host, float* at) { write(at, of_host.data(), std::ssize(of_host) * 4); }

 private:
  template <typename Body>
  void set(const Body& body) {
    pass_.fn = [this, &body](LaunchContext& of_stream) {
      context_ = of_stream;
      body();
    };
  }
  void issue(size_t turn);
  void repeat(size_t turn, int64_t key);
  void record(size_t turn);

  ThreadPool pool_;
  LaunchContext host_, context_;
  std::unique_ptr<Device> device_;
  Work pass_, release_stream_;
  std::unique_ptr<Stream> stream_;  // on a GPU
  std::array<std::unique_ptr<Event>, kTurns> ended_;
  std::array<std::unique_ptr<Graph>, kTurns> graphs_;
  bool records_;
  std::pair<int64_t, int64_t> steady_{-1, -1};  // the key of the last repeat(), and the number of allocations after it
  uint32_t replays_ = 0;
  std::vector<Span> spans_;
  std::vector<std::byte> converted_;
  std::vector<float> of_device_;
  std::vector<Scratch> outgrown_;  // memory of kernels that may not have run yet
};

}  // namespace slipstream::models
