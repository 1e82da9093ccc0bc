// SPDX-License-Identifier: Apache-2.0
// Fits latency and bandwidth by least squares of relative errors.

#include "trainer/bench/link_fit.h"

#include <algorithm>
#include <cmath>

namespace slipstream::bench {
namespace {

double sum_of_squares(const std::vector<TimedTransfer>& samples, double latency, double per_byte) {
  double sum = 0;
  for (const TimedTransfer& s : samples) {
    const double error = (s.rounds * latency + s.bytes * per_byte) / s.seconds - 1;
    sum += error * error;
  }
  return sum;
}

}  // namespace

double bus_factor(Op op, int ranks) {
  const double n = ranks, others = (n - 1) / n;
  switch (op) {
    case Op::all_reduce:
      return 2 * others;
    case Op::reduce_scatter:
    case Op::all_gather:
    case Op::all_to_all:
    case Op::all_to_all_v:
      return others;
    default:
      return 1;
  }
}

LinkFit fit_link(const std::vector<TimedTransfer>& samples) {
  if (samples.empty()) return {};
  // With x = rounds / seconds and y = bytes / seconds, the model is x latency + y per_byte = 1.
  double xx = 0, xy = 0, yy = 0, x1 = 0, y1 = 0;
  for (const TimedTransfer& s : samples) {
    const double x = s.rounds / s.seconds, y = s.bytes / s.seconds;
    xx += x * x;
    xy += x * y;
    yy += y * y;
    x1 += x;
    y1 += y;
  }
  // The minimum lies inside, or on the axis of one of the two.
  std::vector<std::pair<double, double>> candidates = {{xx > 0 ? x1 / xx : 0, 0}, {0, yy > 0 ? y1 / yy : 0}};
  const double determinant = xx * yy - xy * xy;
  if (determinant > 1e-12 * xx * yy) {
    const double latency = (x1 * yy - y1 * xy) / determinant, per_byte = (y1 * xx - x1 * xy) / determinant;
    if (latency >= 0 && per_byte >= 0) candidates = {{latency, per_byte}};
  }
  const auto [latency, per_byte] = *std::min_element(candidates.begin(), candidates.end(), [&](auto a, auto b) {
    return sum_of_squares(samples, a.first, a.second) < sum_of_squares(samples, b.first, b.second);
  });
  LinkFit fit{.latency_s = latency, .bytes_per_second = per_byte > 0 ? 1 / per_byte : 0};
  for (const TimedTransfer& s : samples)
    fit.error_max = std::max(fit.error_max, std::abs((s.rounds * latency + s.bytes * per_byte) / s.seconds - 1));
  return fit;
}

}  // namespace slipstream::bench
