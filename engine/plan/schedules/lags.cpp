// SPDX-License-Identifier: Apache-2.0
// Finds the lags of ZB-H1's weight gradients for given pass times by trials in virtual time.

#include <algorithm>

#include "engine/plan/schedules/schedule.h"

namespace slipstream {

std::vector<int> most_lags(const ScheduleShape& shape) {
  // A stage begins fewer micro-batches early than the first one does, by its position. Each lagging weight gradient
  // takes the memory of one of them.
  std::vector<int> most;
  for (int stage = 0; stage < shape.stages; ++stage) most.push_back(stage * (shape.hides_transfers ? 2 : 1));
  return most;
}

std::vector<int> best_lags(const ScheduleShape& shape, const PlayTimes& times, std::vector<int> most) {
  constexpr int kRounds = 4;              // the rounds of the search, which limit its cost with many stages
  constexpr int64_t kWorthSaying = 1000;  // differences below a step / this are within the error of the times
  using Lags = std::vector<int>;
  const auto span_ns = [&](const Lags& lags) {
    ScheduleShape asked = shape;
    asked.lags = lags;
    return play(make_schedule(ScheduleKind::zb_h1, asked), times).makespan_ns;
  };
  if (most.empty()) most = most_lags(shape);
  Lags published;
  for (int stage = 0; stage < shape.stages; ++stage) published.push_back(stage);
  const int64_t published_ns = span_ns(published);
  Lags best = published;
  int64_t best_ns = published_ns;
  const auto take_if_shorter = [&](const Lags& lags) {
    const int64_t ns = span_ns(lags);
    if (ns >= best_ns) return false;
    best = lags;
    best_ns = ns;
    return true;
  };
  take_if_shorter(Lags(most.size(), 0));  // these lags are 1F1B that sends its input gradients early
  take_if_shorter(most);
  bool moved = true;
  for (int round = 0; moved && round < kRounds; ++round) {
    moved = false;
    for (size_t s = 1; s < most.size(); ++s)
      for (int step = 1; step <= most[s]; step *= 2)
        for (int lag : {best[s] - step, best[s] + step}) {
          if (lag < 0 || lag > most[s]) continue;
          Lags other = best;
          other[s] = lag;
          moved |= take_if_shorter(other);
        }
  }
  const bool worth = (published_ns - best_ns) * kWorthSaying >= published_ns && best_ns < published_ns;
  return worth ? best : Lags{};
}

}  // namespace slipstream
