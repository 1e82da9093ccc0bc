// SPDX-License-Identifier: Apache-2.0
#pragma once
// Another clock's times on ours: a line that is bent where a reading shows that it is off, and never goes back.

#include <cstdint>

namespace slipstream {

/// Clocks of hosts and devices drift apart by some 10 us a second. A reading (their time, and when on our clock it can
/// have been at the earliest and at the latest) moves the line no further than it proves: into the bracket.
///
/// Small errors are taken back over the next second, so that durations stay right to kMostSlope; larger ones at once.
/// Where the line was ahead it then stands still until our clock has caught up. Readings concern later times only: what
/// has been answered stays as it was.
class ClockMap {
 public:
  static constexpr double kMostSlope = 200e-6;  // by which seconds are stretched
  static constexpr int64_t kCatchUpNs = 1'000'000'000;

  /// At `theirs_ns` on their clock it was `ours_ns` on ours.
  ClockMap(int64_t theirs_ns, int64_t ours_ns);
  /// Never decreases from one of their times to a later one, but for times before the newest bend but one.
  int64_t at_ns(int64_t theirs_ns);
  /// At `theirs_ns` it was between `earliest_ns` and `latest_ns`.
  void correct(int64_t theirs_ns, int64_t earliest_ns, int64_t latest_ns);

 private:
  struct Segment {
    int64_t theirs_ns = 0;  // where it begins
    int64_t ours_ns = 0;
    double slope = 0;  // how much faster than theirs ours goes, for kCatchUpNs
    int64_t not_before_ns = INT64_MIN;

    int64_t at_ns(int64_t theirs) const;
  };
  int64_t on_line(int64_t theirs_ns) const;

  Segment before_, now_;
  int64_t latest_asked_ns_;  // of theirs
};

}  // namespace slipstream
