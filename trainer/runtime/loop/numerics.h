// SPDX-License-Identifier: Apache-2.0
#pragma once
// Judges the loss and the gradient norm of every step: values that are not finite, and spikes among the last steps.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/config/config.h"
#include "trainer/runtime/rank/rank.h"

namespace slipstream::runtime {

/// The window of a loss or a norm before a step, and the largest value that is no spike.
struct Window {
  double mean = 0, deviation = 0;
  float limit = 0;
};
/// The finite ones among the last NumericsGuard::kWindow of `values`; none if fewer than half of kWindow are finite, or
/// if all are equal. Pure.
std::optional<Window> window_of(std::span<const double> values, double zscore);

/// The device decides about a step by limits that the host stages with the step's batch. The host may run ahead of the
/// device, so the limits of step k come from the steps up to k - kLag, at any timing.
class NumericsGuard {
 public:
  static constexpr int64_t kWindow = 128, kLag = 4;

  /// `tokens`: of a step. `stages`: the jobs of all stages.
  NumericsGuard(const RunConfig& config, int64_t tokens, const std::vector<std::shared_ptr<const Job>>& stages);

  /// Continues behind `step` with the history of a checkpoint. Call it before the first judge().
  void resume(int64_t step, const checkpoint::NumericsHistory& history);
  /// The history after the last judged step. Pure.
  const checkpoint::NumericsHistory& history() const { return history_; }

  /// The limits of `step`, for Clip: of the norm and of the sum of the losses. All steps up to step - kLag are judged.
  /// Any thread may call it while later steps are judged. Pure.
  void write_limits(int64_t step, std::span<float> limits) const;
  /// Judges an ended step; steps come in order. Prints a warning for a spike and for a skipped update. Returns the
  /// reason for which the run cannot go on; empty: it can. The same on all ranks.
  std::string judge(int64_t step, const Rank::Report& report);
  /// The history that judging this step next would leave; none if the run could not go on. Pure.
  std::optional<checkpoint::NumericsHistory> history_after(int64_t step, const Rank::Report& report) const;

 private:
  struct Verdict {
    int64_t skips = 0;            // in a row, this step's included
    std::string reason, warning;  // one of them at most: the run cannot go on, or can
  };
  Verdict consider(int64_t step, const Rank::Report& report, int64_t skips) const;
  struct Expected {
    std::optional<Window> loss, norm;
  };
  const Expected& expected(int64_t step) const { return expected_[static_cast<size_t>(step) % expected_.size()]; }
  /// Adds a step to the history, and sets what is expected of step + kLag.
  void record(int64_t step, double loss, double norm);
  /// "the loss is nan and the gradient norm nan; ...", or which value is a spike; empty: nothing is unusual.
  std::string finding(int64_t step, const Rank::Report& report) const;

  const Train train_;
  const bool has_norm_;
  const double tokens_;
  std::vector<std::string> gradients_;  // the tensor of every part of the norm
  checkpoint::NumericsHistory history_;
  std::array<Expected, 8> expected_;  // by step; while step k runs, those of k - 2 to k + kLag are in use
};

}  // namespace slipstream::runtime
