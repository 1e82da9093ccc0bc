// SPDX-License-Identifier: Apache-2.0
// A limited writer sleeps until its bytes are due.

#include "engine/checkpoint/writer_pace.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace slipstream::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

// On a core that computes, the kernel gives a thread of this priority 15 parts in 1039 (measured: 1.4 to 1.5 %), so
// that a step takes at most that much longer. The policy SCHED_IDLE would give it 3 parts, but other programs of the
// host could then hold up a save for hours.
constexpr int kLowPriority = 19;

constexpr double kLongestSeconds = 1e7;  // the longest wait; it keeps sums of times from overflowing

void set_priority(int priority) { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), priority); }

}  // namespace

WriterPace::WriterPace(int64_t bytes_per_second)
    : bytes_per_second_(bytes_per_second),
      usual_priority_(::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()))) {}

void WriterPace::begin() {
  set_priority(kLowPriority);
  is_low_ = true;
  start_ = Clock::now();
}

void WriterPace::keep(int64_t size_bytes) {
  done_bytes_ += size_bytes;
  std::unique_lock lock(mutex_);
  if (bytes_per_second_ > 0) {
    const double seconds = static_cast<double>(done_bytes_) / static_cast<double>(bytes_per_second_);
    lifting_.wait_until(lock,
                        start_ + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(std::min(seconds, kLongestSeconds))),
                        [this] { return lifted_; });
  }
  if (lifted_ && is_low_) {
    set_priority(usual_priority_);
    is_low_ = false;
  }
}

void WriterPace::lift() {
  {
    const std::lock_guard lock(mutex_);
    lifted_ = true;
  }
  lifting_.notify_all();
}

}  // namespace slipstream::checkpoint
