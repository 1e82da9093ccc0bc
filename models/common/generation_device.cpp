// SPDX-License-Identifier: Apache-2.0
// Copies between the host and the device of text generation, and its works.

#include "models/common/generation_device.h"

#include <algorithm>

#include "kernels/cast/cast.h"
#include "kernels/cuda/workspace.h"

namespace slipstream::models {

GenerationDevice::GenerationDevice(std::unique_ptr<Device> device, int threads)
    : pool_(threads),
      device_(device ? std::move(device) : make_cpu_device()),
      pass_{.name = "generate"},
      release_stream_{.name = "release_stream",
                      .fn = [](LaunchContext& c) { kernels::release_stream(c.native_stream); }} {
  host_.pool = &pool_;
  context_ = host_;
  if (device_->kind() != DeviceKind::cuda) return;
  stream_ = device_->make_stream({.name = "compute"});
  run([&] { kernels::prepare_stream(context_.native_stream); });
}

GenerationDevice::~GenerationDevice() {
  if (stream_) stream_->launch(release_stream_, {});
}

void GenerationDevice::launch_pass() {
  stream_->launch(pass_, {});
  stream_->synchronize();
  stream_->drain(spans_);
  spans_.clear();
  outgrown_.clear();
}

float* GenerationDevice::floats(Scratch& at, int64_t elems) {
  const int64_t size_bytes = bytes_of(elems, DType::f32), held_bytes = at ? at->size_bytes() : 0;
  if (!at || held_bytes < size_bytes) {
    if (stream_) outgrown_.push_back(std::move(at));
    at.reset();
    // Some more, because workspaces of attention grow with every few tokens.
    at = device_->allocate(std::max(size_bytes, held_bytes + held_bytes / 4), "rows of text generation");
  }
  return reinterpret_cast<float*>(at->data());
}

void GenerationDevice::store(std::span<const float> from, std::byte* to, DType dtype) {
  const int64_t size_bytes = bytes_of(std::ssize(from), dtype);
  if (stream_) converted_.resize(static_cast<size_t>(size_bytes));
  std::byte* const here = stream_ ? converted_.data() : to;
  kernels::cast(host_, {.from = from.data(), .to = here, .elems = std::ssize(from), .to_dtype = dtype});
  if (stream_) device_->copy_from_host(to, here, size_bytes);
}

const int32_t* GenerationDevice::ids(Scratch& at, std::span<const int32_t> of_host) {
  if (!stream_) return of_host.data();
  float* const to = floats(at, std::ssize(of_host));
  device_->copy_from_host(reinterpret_cast<std::byte*>(to), of_host.data(), bytes_of(std::ssize(of_host), DType::i32));
  return reinterpret_cast<const int32_t*>(to);
}

std::span<float> GenerationDevice::to_host(float* at, int64_t elems) {
  if (!stream_) return {at, static_cast<size_t>(elems)};
  of_device_.resize(static_cast<size_t>(elems));
  stream_->synchronize();
  device_->copy_to_host(of_device_.data(), reinterpret_cast<const std::byte*>(at), bytes_of(elems, DType::f32));
  return of_device_;
}

void GenerationDevice::to_device(std::span<const float> of_host, float* at) {
  if (stream_)
    device_->copy_from_host(reinterpret_cast<std::byte*>(at), of_host.data(),
                            bytes_of(std::ssize(of_host), DType::f32));
}

}  // namespace slipstream::models
