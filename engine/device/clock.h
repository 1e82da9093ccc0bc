// SPDX-License-Identifier: Apache-2.0
#pragma once
// The host's clock, common to all processes of one machine, and its offset from another machine's clock.

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace slipstream {

/// Returns nanoseconds of CLOCK_MONOTONIC.
inline int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

/// One query of another machine's clock: our time of the question, their time, and our time when the answer arrived.
struct ClockReading {
  int64_t asked_ns = 0;
  int64_t theirs_ns = 0;
  int64_t answered_ns = 0;
};

/// Pure. Returns the nanoseconds to add to our clock to get theirs, by the quickest of the readings (at least one). The
/// error is at most half of that reading's round trip, even if the two directions take different times. Source:
/// Cristian 1989, "Probabilistic clock synchronization", section 3.
inline int64_t clock_offset_of(const std::vector<ClockReading>& readings) {
  const auto round_trip_ns = [](const ClockReading& r) { return r.answered_ns - r.asked_ns; };
  const ClockReading quickest = *std::min_element(
      readings.begin(), readings.end(),
      [&](const ClockReading& a, const ClockReading& b) { return round_trip_ns(a) < round_trip_ns(b); });
  return quickest.theirs_ns - (quickest.asked_ns + round_trip_ns(quickest) / 2);
}

}  // namespace slipstream
