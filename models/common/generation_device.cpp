// SPDX-License-Identifier: Apache-2.0
// Copies between the host and the device of text generation, and runs its works.

#include "models/common/generation_device.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "kernels/cast/cast.h"
#include "kernels/cuda/workspace.h"

namespace slipstream::models {

GenerationDevice::GenerationDevice(std::unique_ptr<Device> device, int threads, bool records)
    : pool_(threads),
      device_(device ? std::move(device) : make_cpu_device()),
      pass_{.name = "generate"},
      release_stream_{.name = "release_stream",
                      .fn = [](LaunchContext& c) { kernels::release_stream(c.native_stream); }},
      records_(records) {
  host_.pool = &pool_;
  context_ = host_;
  if (device_->kind() != DeviceKind::cuda) return;
  stream_ = device_->make_stream({.name = "compute"});
  for (size_t turn = 0; turn < kTurns; ++turn) ended_[turn] = device_->make_event(turn);
  run(0, [&] { kernels::prepare_stream(context_.native_stream); });
  finish();
}

GenerationDevice::~GenerationDevice() {
  graphs_ = {};
  if (stream_) stream_->launch(release_stream_, {});
}

void GenerationDevice::issue(size_t turn) {
  stream_->launch(pass_, {});
  stream_->record(*ended_[turn]);
}

void GenerationDevice::repeat(size_t turn, int64_t key) {
  const std::pair now(key, device_->allocation_count());
  if (now != steady_) {  // the first pass of its kind allocates memory
    graphs_ = {};
    issue(turn);
    steady_ = {key, device_->allocation_count()};
    return;
  }
  if (records_ && !graphs_[turn]) record(turn);
  graphs_[turn] ? graphs_[turn]->launch(replays_++) : issue(turn);
}

void GenerationDevice::record(size_t turn) {
  try {
    graphs_[turn] = device_->capture(
        *stream_, [&] { issue(turn); }, GraphSpans::of_items);
  } catch (const Error& error) {
    finish();  // throws if the device has failed
    records_ = false;
    log_warn(
        "{} The step of text generation could not be recorded as a graph, so the host issues each kernel, which "
        "costs more time of the host.",
        error.what());
  }
}

void GenerationDevice::wait(size_t turn) {
  if (!stream_) return;
  ended_[turn]->synchronize();
  stream_->drain(spans_);
  spans_.clear();
}

void GenerationDevice::finish() {
  if (!stream_) return;
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
    // Allocates some more than needed, because workspaces of attention grow with every few tokens.
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

void GenerationDevice::write(void* to, const void* from, int64_t size_bytes) {
  if (stream_)
    device_->copy_from_host(static_cast<std::byte*>(to), from, size_bytes);
  else if (to != from && size_bytes > 0)
    std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

std::span<float> GenerationDevice::to_host(float* at, int64_t elems) {
  if (!stream_) return {at, static_cast<size_t>(elems)};
  of_device_.resize(static_cast<size_t>(elems));
  stream_->synchronize();
  device_->copy_to_host(of_device_.data(), reinterpret_cast<const std::byte*>(at), bytes_of(elems, DType::f32));
  return of_device_;
}

}  // namespace slipstream::models
