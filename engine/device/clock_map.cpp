// SPDX-License-Identifier: Apache-2.0
// Keeps two segments: the newest, and the one before it for late queries of earlier times.

#include "engine/device/clock_map.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"

namespace slipstream {

int64_t ClockMap::Segment::at_ns(int64_t theirs) const {
  const int64_t since_ns = theirs - theirs_ns;
  return std::max<int64_t>(
      not_before_ns, ours_ns + since_ns + std::llround(slope * static_cast<double>(std::min(since_ns, kCatchUpNs))));
}

ClockMap::ClockMap(int64_t theirs_ns, int64_t ours_ns)
    : now_{.theirs_ns = theirs_ns, .ours_ns = ours_ns}, latest_asked_ns_(theirs_ns) {
  before_ = now_;
}

int64_t ClockMap::on_line(int64_t theirs_ns) const {
  return (theirs_ns < now_.theirs_ns ? before_ : now_).at_ns(theirs_ns);
}

int64_t ClockMap::at_ns(int64_t theirs_ns) {
  latest_asked_ns_ = std::max(latest_asked_ns_, theirs_ns);
  return on_line(theirs_ns);
}

void ClockMap::correct(int64_t theirs_ns, int64_t earliest_ns, int64_t latest_ns) {
  SLIP_ASSERT(earliest_ns <= latest_ns);
  // Earlier answers stay valid: the bend comes after them.
  const int64_t bend_ns = std::max(theirs_ns, latest_asked_ns_);
  const int64_t expected_ns = on_line(theirs_ns), at_bend_ns = on_line(bend_ns);
  const int64_t error_ns = std::clamp(expected_ns, earliest_ns, latest_ns) - expected_ns;
  const double slope = static_cast<double>(error_ns) / static_cast<double>(kCatchUpNs);
  before_ = now_;
  now_ = {.theirs_ns = bend_ns, .ours_ns = at_bend_ns};
  if (std::abs(slope) <= kMostSlope) {
    now_.slope = slope;
    return;
  }
  now_.ours_ns += error_ns;
  now_.not_before_ns = at_bend_ns;
}

}  // namespace slipstream
