// SPDX-License-Identifier: Apache-2.0
// Converts device timestamps to the host's clock.

#include <cmath>

#include "engine/device/clock.h"
#include "engine/device/cuda/cuda_check.h"
#include "engine/device/cuda/cuda_stream.h"

namespace slipstream::cuda {
namespace {

// Below this, float milliseconds resolve 0.12 us, which is finer than the events themselves.
constexpr double kEpochMs = 1000;
// A reading whose completion was seen later than this is too inaccurate, and another one is made.
constexpr int64_t kWideNs = 100'000;

double elapsed_ms(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  SLIP_CUDA(cudaEventElapsedTime(&ms, from, to));
  return static_cast<double>(ms);
}

int64_t to_ns(double ms) { return std::llround(ms * 1e6); }

}  // namespace

Clock::Clock() {
  SLIP_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  SLIP_CUDA(cudaEventCreateWithFlags(&epoch_, cudaEventDefault));
  SLIP_CUDA(cudaEventCreateWithFlags(&next_epoch_, cudaEventDefault));
  // Takes the narrowest of a few brackets. Each record completed between the two readings of the host's clock.
  int64_t narrowest_ns = INT64_MAX, at_epoch_ns = 0;
  for (int attempt = 0; attempt < 8; ++attempt) {
    const int64_t before_ns = monotonic_ns();
    SLIP_CUDA(cudaEventRecord(next_epoch_, stream_));
    SLIP_CUDA(cudaStreamSynchronize(stream_));
    const int64_t width_ns = monotonic_ns() - before_ns;
    if (width_ns >= narrowest_ns) continue;
    narrowest_ns = width_ns;
    at_epoch_ns = before_ns + width_ns / 2;
    std::swap(epoch_, next_epoch_);
  }
  host_.emplace(0, at_epoch_ns);
}

Clock::~Clock() {
  SLIP_CUDA_QUIETLY(cudaEventDestroy(epoch_));
  SLIP_CUDA_QUIETLY(cudaEventDestroy(next_epoch_));
  SLIP_CUDA_QUIETLY(cudaStreamDestroy(stream_));
}

int64_t Clock::at_ns(cudaEvent_t completed) {
  std::lock_guard lock(mutex_);
  const double ms = elapsed_ms(epoch_, completed);
  const int64_t time_ns = host_->at_ns(epoch_ns_ + to_ns(ms));
  move_epoch(ms);
  return time_ns;
}

void Clock::record_next() {
  next_asked_ns_ = monotonic_ns();
  SLIP_CUDA(cudaEventRecord(next_epoch_, stream_));
  next_is_recorded_ = true;
}

void Clock::move_epoch(double ms_since_epoch) {
  if (!next_is_recorded_) {
    if (ms_since_epoch >= kEpochMs) record_next();
    return;
  }
  if (!SLIP_CUDA_READY(cudaEventQuery(next_epoch_))) return;
  const int64_t seen_ns = monotonic_ns();
  epoch_ns_ += to_ns(elapsed_ms(epoch_, next_epoch_));
  host_->correct(epoch_ns_, next_asked_ns_, seen_ns);
  std::swap(epoch_, next_epoch_);
  next_is_recorded_ = false;
  if (seen_ns - next_asked_ns_ > kWideNs) record_next();
}

}  // namespace slipstream::cuda
