// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds ranks that are late by themselves, from the own times of all ranks: which rank, for which cause, and since
// when.
//
// A rank's lateness in a step is measured twice: against other ranks' items of the same kinds in the same step, and
// against its own past, less what changed on the other ranks as well. Each lateness is summed over steps as a CUSUM
// (Page 1954, "Continuous inspection schemes"). The sum grows by the time by which a step is late beyond the threshold
// and its noise, shrinks by the time by which a step is early, and never falls below zero. One sum finds both a rank
// that is a little late for many steps and one that is very late once. Lateness for which no rank waits does not count.

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/report/own_time.h"

namespace slipstream {

struct Straggler {
  int rank = 0;
  Cause cause = Cause::compute;
  uint32_t item = kNoItem;  // the latest item of the step with the largest delay
  int64_t step = 0;         // the step of the report
  int64_t since = 0;        // the first late step
  int64_t steps = 0;        // the number of late steps
  double late_ms = 0;       // in all late steps
  double score = 1;         // the share of the steps' time that is left without the lateness
};

class StragglerDetector {
 public:
  /// `threshold` is the share of a step by which a rank must be late. A rank is reported when it has lost kPatience
  /// times this share of a step, and of a second.
  static constexpr double kPatience = 5;
  /// A rank that waits for a core is reported after this many times the time, because other programs come and go.
  static constexpr double kCorePatience = 300;
  /// The first steps, which are judged together with medians of their own.
  static constexpr size_t kLearned = 8;
  /// A rank and a cause are reported at most once in this many steps.
  static constexpr int64_t kQuietSteps = 100;

  StragglerDetector(int ranks, double threshold);

  /// Takes the steps in order. Returns the stragglers that are known now. A step is judged when the next one is known.
  std::vector<Straggler> add(const OwnSample& sample);
  /// Judges the steps that are left.
  std::vector<Straggler> finish();
  /// Returns the time lost by all reported stragglers so far: one entry per rank and cause, the largest first.
  std::vector<Straggler> totals() const;

 private:
  /// The last values of a series.
  class Window {
   public:
    explicit Window(size_t size) : size_(size) {}
    void add(double value);
    const std::vector<double>& values() const { return values_; }

   private:
    size_t size_, next_ = 0;
    std::vector<double> values_;
  };
  /// A CUSUM of one rank, one cause and one reference.
  struct Track {
    Window lateness{64};  // leaves out late steps
    Window all{128};
    double sum_ms = 0;
    Straggler straggler;  // counted since the sum left zero
    double steps_ms = 0, largest_ms = 0;
  };
  struct Series {
    Window own{128};
    std::array<Track, 2> tracks;  // against others, against its own past
    int64_t reported = -kQuietSteps;
    Straggler total;
    double excused_ms = 0;  // because of a stop, see excuse()
    int64_t excused_until = 0;
  };
  using Lateness = std::array<double, 2>;
  struct Limits {
    double step_ms = 0, usual_step_ms = 0;
    double sum_ms = 0;         // the sum of a CUSUM
    Lateness largest_ms = {};  // by track: the largest lateness in past steps, for comparison with another rank
  };

  Series& series(size_t rank, size_t cause) { return series_[rank * kCauses + cause]; }
  /// The stop of a process also makes its transfers and its loader late, and the hosts and transfers of ranks that wait
  /// for it, in the same step or a few later ones. This lateness belongs to the stop and does not count again.
  void excuse(const OwnSample& sample);
  /// Subtracts what is excused from the lateness of a series.
  static void take_excused(Series& one, int64_t step, Lateness& late);
  /// Returns the lateness by rank.
  std::vector<Lateness> lateness(const OwnSample& sample, size_t cause);
  void learn();
  void judge(const OwnSample& sample, const OwnSample* next, std::vector<Straggler>& found);
  bool judge_track(Track& track, double late_ms, double may_cost_ms, double largest_ms, const Limits& limits) const;
  std::optional<Straggler> judge_series(const OwnSample& sample, size_t rank, size_t cause, const Lateness& late,
                                        double cost_ms, const Limits& limits);
  /// Returns by rank the median of the other ranks' largest lateness. For a single rank it is the rank's own.
  std::vector<Lateness> largest_of_others(size_t cause);
  double may_cost_ms(const OwnSample& sample, const OwnSample* next, size_t rank, size_t cause) const;

  size_t ranks_;
  double threshold_;
  std::vector<Series> series_;  // by rank and cause
  Window step_ms_{64};
  std::deque<OwnSample> pending_;
  bool learned_ = false;
};

}  // namespace slipstream
