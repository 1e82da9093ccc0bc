// SPDX-License-Identifier: Apache-2.0
#pragma once
// The clock of the host: common to all processes of one machine.

#include <time.h>

#include <cstdint>

namespace slipstream {

/// Nanoseconds of CLOCK_MONOTONIC.
inline int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

}  // namespace slipstream
