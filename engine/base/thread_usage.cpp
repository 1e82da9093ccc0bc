// SPDX-License-Identifier: Apache-2.0
// Reads /proc/thread-self/schedstat (time on a core, time on a run queue, slices) and the thread's clock, which is
// exact within a slice.

#include "engine/base/thread_usage.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstring>

namespace slipstream {

ThreadUsage::ThreadUsage() : descriptor_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {
  before_ = total();
}

ThreadUsage::~ThreadUsage() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

ThreadUsage::Part ThreadUsage::total() const {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  Part part{.ran_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec};
  char text[96];
  const ssize_t size = descriptor_ < 0 ? 0 : ::pread(descriptor_, text, sizeof text, 0);
  if (size <= 0) return part;
  const auto* const space = static_cast<const char*>(std::memchr(text, ' ', static_cast<size_t>(size)));
  if (space != nullptr) std::from_chars(space + 1, text + size, part.ready_ns);
  return part;
}

ThreadUsage::Part ThreadUsage::look() {
  const Part now = total();
  const Part since{now.ran_ns - before_.ran_ns, now.ready_ns - before_.ready_ns};
  before_ = now;
  return since;
}

}  // namespace slipstream
