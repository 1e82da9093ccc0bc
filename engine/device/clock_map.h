// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts another clock's times to ours by a piecewise linear map that readings correct and that never goes back.

#include <cstdint>

namespace slipstream {

/// Clocks of hosts and devices drift apart by about 10 us a second. A reading is a time of theirs with its earliest and
/// latest possible time on our clock. It moves the line only as far as it proves: into that bracket.
///
/// Small errors are corrected over the next second, so that durations stay right to kMostSlope. Larger errors are
/// corrected at once. A line that was ahead stands still until our clock has caught up. Readings affect later times
/// only, and earlier answers stay valid.
class ClockMap {
 public:
  static constexpr double kMostSlope = 200e-6;  // largest relative change of a duration
  static constexpr int64_t kCatchUpNs = 1'000'000'000;

  /// Starts with the assumption that their clock showed `theirs_ns` when ours showed `ours_ns`.
  ClockMap(int64_t theirs_ns, int64_t ours_ns);
  /// Returns our time at `theirs_ns`. The result never decreases for increasing times after the second newest bend.
  int64_t at_ns(int64_t theirs_ns);
  /// Adds a reading: at `theirs_ns` our time was between `earliest_ns` and `latest_ns`.
  void correct(int64_t theirs_ns, int64_t earliest_ns, int64_t latest_ns);

 private:
  struct Segment {
    int64_t theirs_ns = 0;  // where the segment begins
    int64_t ours_ns = 0;
    double slope = 0;  // relative speed of our clock to theirs, less 1, for kCatchUpNs
    int64_t not_before_ns = INT64_MIN;

    int64_t at_ns(int64_t theirs) const;
  };
  int64_t on_line(int64_t theirs_ns) const;

  Segment before_, now_;
  int64_t latest_asked_ns_;  // on their clock
};

}  // namespace slipstream
