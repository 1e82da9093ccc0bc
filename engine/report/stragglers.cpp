// SPDX-License-Identifier: Apache-2.0
// Judges steps by medians and median deviations of windows. The windows of a series do not learn from steps that are
// late.

#include "engine/report/stragglers.h"

#include <algorithm>
#include <limits>

#include "engine/base/check.h"
#include "engine/base/median.h"

namespace slipstream {
namespace {

// The noise that a step may add to a CUSUM, and the noise that a CUSUM may hold, in robust standard deviations.
constexpr double kNoiseAllowed = 2, kNoiseHeld = 10;
// Noise has single large values. So a sum must exceed the largest lateness of other ranks by this factor.
constexpr double kLargestNoise = 4;
constexpr double kSecondMs = 1000;
// For times below this share of a step, a factor has no meaning.
constexpr double kLeastShare = 0.05;
// A stop is noticed within half a second, which is not part of its measured time. It excuses lateness for this many
// steps.
constexpr double kNoticedMs = 500;
constexpr int64_t kExcusedSteps = 16;

}  // namespace

void StragglerDetector::Window::add(double value) {
  if (values_.size() < size_)
    values_.push_back(value);
  else
    values_[next_++ % size_] = value;
}

StragglerDetector::StragglerDetector(int ranks, double threshold)
    : ranks_(static_cast<size_t>(ranks)), threshold_(threshold), series_(ranks_ * kCauses) {
  SLIP_ASSERT(ranks >= 1 && threshold > 0);
}

std::vector<Straggler> StragglerDetector::add(const OwnSample& sample) {
  SLIP_ASSERT(sample.ranks.size() == ranks_);
  std::vector<Straggler> found;
  pending_.push_back(sample);
  excuse(sample);
  if (!learned_ && pending_.size() < kLearned) return found;
  if (!learned_) learn();
  for (; pending_.size() > 1; pending_.pop_front()) judge(pending_[0], &pending_[1], found);
  return found;
}

std::vector<Straggler> StragglerDetector::finish() {
  std::vector<Straggler> found;
  if (learned_)
    for (; !pending_.empty(); pending_.pop_front()) judge(pending_[0], nullptr, found);
  return found;
}

std::vector<Straggler> StragglerDetector::totals() const {
  std::vector<Straggler> all;
  for (const Series& one : series_)
    if (one.total.steps > 0) all.push_back(one.total);
  std::stable_sort(all.begin(), all.end(),
                   [](const Straggler& a, const Straggler& b) { return a.late_ms > b.late_ms; });
  return all;
}

void StragglerDetector::learn() {
  learned_ = true;
  for (const OwnSample& sample : pending_) {
    step_ms_.add(sample.step_ms);
    for (size_t r = 0; r < ranks_; ++r)
      for (size_t c = 0; c < kCauses; ++c) series(r, c).own.add(sample.ranks[r].own[c]);
  }
  for (const OwnSample& sample : pending_)
    for (size_t c = 0; c < kCauses; ++c) {
      const std::vector<Lateness> late = lateness(sample, c);
      for (size_t r = 0; r < ranks_; ++r)
        for (size_t t = 0; t < late[r].size(); ++t) series(r, c).tracks[t].lateness.add(late[r][t]);
    }
}

void StragglerDetector::excuse(const OwnSample& sample) {
  for (size_t stopped = 0; stopped < ranks_; ++stopped) {
    if (sample.ranks[stopped].stopped <= 0) continue;
    for (size_t r = 0; r < ranks_; ++r)
      for (size_t c = 0; c < kCauses; ++c) {
        const auto cause = static_cast<Cause>(c);
        if (r == stopped ? cause == Cause::host : cause != Cause::host && cause != Cause::link) continue;
        series(r, c).excused_ms += sample.ranks[stopped].stopped + kNoticedMs;
        series(r, c).excused_until = sample.step + kExcusedSteps;
      }
  }
}

void StragglerDetector::take_excused(Series& one, int64_t step, Lateness& late) {
  if (step > one.excused_until) one.excused_ms = 0;
  const double excused_ms = std::min(one.excused_ms, std::max({0.0, late[0], late[1]}));
  for (double& ms : late) ms = std::min(ms, std::max(0.0, ms - excused_ms));
  one.excused_ms -= excused_ms;
}

std::vector<StragglerDetector::Lateness> StragglerDetector::lateness(const OwnSample& sample, size_t cause) {
  const double step_ms = median(step_ms_.values());
  std::vector<double> usual, beyond, factor;
  for (size_t r = 0; r < ranks_; ++r) {
    const double own = sample.ranks[r].own[cause];
    usual.push_back(median(series(r, cause).own.values()));
    beyond.push_back(own - usual[r]);
    factor.push_back(usual[r] > kLeastShare * step_ms ? own / usual[r] : 1);
  }
  std::vector<Lateness> late;
  for (size_t r = 0; r < ranks_; ++r) late.push_back({sample.ranks[r].beyond[cause], beyond[r]});
  if (ranks_ == 1) return late;
  // A save or a busy machine slows the other ranks as well, by a factor of their usual times. This is no lateness of
  // this rank. The factor makes this rank's noise larger too, but only as far as noise of the usual time can reach:
  // other ranks that work for 1 ms instead of 0.5 ms do not halve a delay of a second.
  const MedianOfOthers other_beyond(beyond), other_factor(factor);
  for (size_t r = 0; r < ranks_; ++r) {
    const double busy = std::max(1.0, other_factor.without(factor[r]));
    const double common = std::max({0.0, other_beyond.without(beyond[r]), usual[r] * (busy - 1)});
    const double explained = kLargestNoise * std::max(usual[r], kLeastShare * step_ms) * (busy - 1);
    const auto without_noise = [&](double ms) { return ms - std::clamp(ms - ms / busy, -explained, explained); };
    late[r] = {without_noise(late[r][0]), without_noise(late[r][1] - common)};
  }
  return late;
}

std::vector<StragglerDetector::Lateness> StragglerDetector::largest_of_others(size_t cause) {
  std::vector<Lateness> of_others(ranks_);
  for (size_t t = 0; t < of_others[0].size(); ++t) {
    std::vector<double> largest;
    for (size_t r = 0; r < ranks_; ++r) {
      const std::vector<double>& all = series(r, cause).tracks[t].all.values();
      largest.push_back(all.empty() ? 0 : *std::max_element(all.begin(), all.end()));
    }
    if (ranks_ == 1) {
      of_others[0][t] = largest[0];
      continue;
    }
    const MedianOfOthers others(largest);
    for (size_t r = 0; r < ranks_; ++r) of_others[r][t] = others.without(largest[r]);
  }
  return of_others;
}

double StragglerDetector::may_cost_ms(const OwnSample& sample, const OwnSample* next, size_t rank, size_t cause) const {
  const bool waits_itself = static_cast<Cause>(cause) == Cause::link || static_cast<Cause>(cause) == Cause::input;
  if (ranks_ == 1 && !waits_itself) return std::numeric_limits<double>::infinity();
  // In an earlier step, the other ranks waited for a stopped process.
  double longest = static_cast<Cause>(cause) == Cause::host ? sample.ranks[rank].stopped : 0;
  for (size_t r = 0; r < ranks_; ++r)
    if (r != rank || waits_itself)
      longest = std::max(longest, sample.ranks[r].waited + (next ? next->ranks[r].waited : 0));
  return longest;
}

bool StragglerDetector::judge_track(Track& track, double late_ms, double may_cost_ms, double largest_ms,
                                    const Limits& limits) const {
  const double noise_ms = robust_deviation(track.lateness.values());
  const double counted_ms = std::min(late_ms, may_cost_ms);
  const double allowed_ms = threshold_ * limits.usual_step_ms + kNoiseAllowed * noise_ms;
  track.sum_ms = std::max(0.0, track.sum_ms + counted_ms - allowed_ms);
  if (track.sum_ms < limits.sum_ms / 4) track.lateness.add(late_ms);
  track.all.add(late_ms);
  if (track.sum_ms == 0) {
    track.straggler = {};
    track.steps_ms = track.largest_ms = 0;
    return false;
  }
  ++track.straggler.steps;
  track.straggler.late_ms += counted_ms;
  track.steps_ms += limits.step_ms;
  track.straggler.score = std::max(0.0, 1 - track.straggler.late_ms / track.steps_ms);
  return track.sum_ms >= std::max({limits.sum_ms, kNoiseHeld * noise_ms, kLargestNoise * largest_ms});
}

void StragglerDetector::judge(const OwnSample& sample, const OwnSample* next, std::vector<Straggler>& found) {
  const double usual_ms = median(step_ms_.values());
  std::vector<Lateness> computes;
  for (size_t c = 0; c < kCauses; ++c) {
    std::vector<Lateness> late = lateness(sample, c);
    if (static_cast<Cause>(c) == Cause::compute) computes = late;
    // A rank that computes for longer also waits for longer on a busy machine.
    for (size_t r = 0; r < ranks_ && static_cast<Cause>(c) == Cause::core; ++r)
      if (std::max(computes[r][0], computes[r][1]) > threshold_ * usual_ms) late[r] = {};
    const double patience = static_cast<Cause>(c) == Cause::core ? kCorePatience : kPatience;
    Limits limits{sample.step_ms, usual_ms, patience * threshold_ * std::max(usual_ms, kSecondMs)};
    const std::vector<Lateness> largest = largest_of_others(c);
    for (size_t r = 0; r < ranks_; ++r) {
      take_excused(series(r, c), sample.step, late[r]);
      limits.largest_ms = largest[r];
      if (const auto straggler = judge_series(sample, r, c, late[r], may_cost_ms(sample, next, r, c), limits))
        found.push_back(*straggler);
    }
  }
  step_ms_.add(sample.step_ms);
}

std::optional<Straggler> StragglerDetector::judge_series(const OwnSample& sample, size_t rank, size_t cause,
                                                         const Lateness& late, double cost_ms, const Limits& limits) {
  Series& one = series(rank, cause);
  const Straggler* worst = nullptr;
  bool is_late = false;
  for (size_t t = 0; t < late.size(); ++t) {
    Track& track = one.tracks[t];
    const bool alarms = judge_track(track, late[t], cost_ms, limits.largest_ms[t], limits);
    is_late = is_late || track.sum_ms >= limits.sum_ms / 4;
    if (track.straggler.steps == 1) track.straggler.since = sample.step;
    if (track.straggler.steps > 0 && late[t] > track.largest_ms) {
      track.largest_ms = late[t];
      track.straggler.item = sample.ranks[rank].latest[cause];
    }
    if (alarms && (!worst || track.straggler.late_ms > worst->late_ms)) worst = &track.straggler;
  }
  if (!is_late) one.own.add(sample.ranks[rank].own[cause]);
  if (!worst) return {};
  Straggler straggler = *worst;
  straggler.rank = static_cast<int>(rank);
  straggler.cause = static_cast<Cause>(cause);
  straggler.step = sample.step;
  one.total.rank = straggler.rank;
  one.total.cause = straggler.cause;
  one.total.steps += straggler.steps;
  one.total.late_ms += straggler.late_ms;
  for (Track& track : one.tracks) {
    track.sum_ms = track.steps_ms = track.largest_ms = 0;
    track.straggler = {};
  }
  if (sample.step - one.reported < kQuietSteps) return {};
  one.reported = sample.step;
  return straggler;
}

}  // namespace slipstream
