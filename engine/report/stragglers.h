// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds ranks that are late by themselves, from the own times of all ranks: which rank, for which cause, since when.
//
// A rank's lateness in a step is measured twice: against other ranks' items of the same kinds in the same step, and
// against its own past, less what changed on the other ranks as well. Each is summed over steps as a CUSUM (Page 1954,
// "Continuous inspection schemes"): what a step is late beyond the threshold and its noise is added, what it is early
// is subtracted, and the sum never falls below zero. One sum finds a rank that is a little late for long and one that
// is late once by much. Lateness for which no rank waits does not count.

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
  uint32_t item = kNoItem;  // latest of the step with the largest delay
  int64_t step = 0;         // of the report
  int64_t since = 0;        // first late step
  int64_t steps = 0;        // late ones
  double late_ms = 0;       // in all of them
  double score = 1;         // share of the steps' time that is left without it
};

class StragglerDetector {
 public:
  /// `threshold`: share of a step by which a rank must be late. It is reported when it has lost kPatience times this
  /// share of a step, and of a second.
  static constexpr double kPatience = 5;
  /// Waiting for a core is reported after this many times the time: other programs come and go.
  static constexpr double kCorePatience = 300;
  /// Steps that are judged together at first, with their own medians.
  static constexpr size_t kLearned = 8;
  /// A rank and a cause are reported once in so many steps.
  static constexpr int64_t kQuietSteps = 100;

  StragglerDetector(int ranks, double threshold);

  /// Takes the steps in order. Returns the stragglers known now; a step is judged when the next one is known.
  std::vector<Straggler> add(const OwnSample& sample);
  /// Judges the steps that are left.
  std::vector<Straggler> finish();
  /// Time lost by all reported stragglers so far: one entry per rank and cause, the largest first.
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
  /// A CUSUM of one rank, cause and reference.
  struct Track {
    Window lateness{64};  // without late steps
    Window all{128};
    double sum_ms = 0;
    Straggler straggler;  // since the sum left zero
    double steps_ms = 0, largest_ms = 0;
  };
  struct Series {
    Window own{128};
    std::array<Track, 2> tracks;  // against others, against its own past
    int64_t reported = -kQuietSteps;
    Straggler total;
    double excused_ms = 0;  // of a stop, see excuse()
    int64_t excused_until = 0;
  };
  using Lateness = std::array<double, 2>;
  struct Limits {
    double step_ms = 0, usual_step_ms = 0;
    double sum_ms = 0;         // of a CUSUM
    Lateness largest_ms = {};  // by track: of the past steps of another rank
  };

  Series& series(size_t rank, size_t cause) { return series_[rank * kCauses + cause]; }
  /// The stop of a process also makes its transfers and its loader late, and the hosts and transfers of ranks that wait
  /// for it, in the same step or a few later ones. This lateness is the stop's and does not count again.
  void excuse(const OwnSample& sample);
  /// Takes what is excused from the lateness of a series.
  static void take_excused(Series& one, int64_t step, Lateness& late);
  /// By rank.
  std::vector<Lateness> lateness(const OwnSample& sample, size_t cause);
  void learn();
  void judge(const OwnSample& sample, const OwnSample* next, std::vector<Straggler>& found);
  bool judge_track(Track& track, double late_ms, double may_cost_ms, double largest_ms, const Limits& limits) const;
  std::optional<Straggler> judge_series(const OwnSample& sample, size_t rank, size_t cause, const Lateness& late,
                                        double cost_ms, const Limits& limits);
  /// By rank: the median over the other ranks of their largest lateness; of one rank, its own.
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
