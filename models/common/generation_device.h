// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where text generation runs: on the CPU on the calling thread, on a GPU as works of one stream.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/device.h"

namespace slipstream::models {

/// Owns the device, its stream and outgrown memory. On the CPU all memory is the host's, and nothing is copied.
class GenerationDevice {
 public:
  /// Null: the CPU, with this number of threads. They also convert weights for a GPU.
  GenerationDevice(std::unique_ptr<Device> device, int threads);
  ~GenerationDevice();
  GenerationDevice(const GenerationDevice&) = delete;
  GenerationDevice& operator=(const GenerationDevice&) = delete;

  DeviceKind kind() const { return device_->kind(); }
  std::unique_ptr<Allocation> allocate(int64_t size_bytes, const std::string& name) {
    return device_->allocate(size_bytes, name);
  }
  ThreadPool& host_threads() { return pool_; }
  /// Of the ops that the body of run() calls.
  LaunchContext& context() { return context_; }

  /// Blocks. Throws: what body() throws, and errors of the device.
  template <typename Body>
  void run(const Body& body) {
    if (!stream_) return body();
    pass_.fn = [&](LaunchContext& of_stream) {
      context_ = of_stream;
      body();
    };
    launch_pass();
  }

  /// Grows: its contents do not survive.
  using Scratch = std::unique_ptr<Allocation>;
  /// At least this many floats.
  float* floats(Scratch& at, int64_t elems);

  /// Blocks. Converts floats of the host to memory of the device.
  void store(std::span<const float> from, std::byte* to, DType dtype);
  /// Blocks. These ids where kernels read them. The host keeps its own until the next call.
  const int32_t* ids(Scratch& at, std::span<const int32_t> of_host);
  /// Blocks. These floats where the host reads them, until the next call; after changes call to_device().
  std::span<float> to_host(float* at, int64_t elems);
  void to_device(std::span<const float> of_host, float* at);

 private:
  void launch_pass();

  ThreadPool pool_;
  LaunchContext host_, context_;
  std::unique_ptr<Device> device_;
  Work pass_, release_stream_;
  std::unique_ptr<Stream> stream_;  // of a GPU
  std::vector<Span> spans_;
  std::vector<std::byte> converted_;
  std::vector<float> of_device_;
  std::vector<Scratch> outgrown_;  // of kernels that may not have run
};

}  // namespace slipstream::models
