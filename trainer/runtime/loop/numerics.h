// SPDX-License-Identifier: Apache-2.0
#pragma once
// Judges the loss and the gradient norm of every step: values that are not finite, and spikes compared with the last
// steps.

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
/// Returns the window of the finite values among the last NumericsGuard::kWindow of `values`, or none if fewer than
/// half of kWindow are finite, or if all are equal. Pure.
std::optional<Window> window_of(std::span<const double> values, double zscore);

/// The device decides about a step by limits that the host stages with the step's batch. The host may run ahead of the
/// device, so the limits of step k come from the steps up to k - kLag, at any timing.
class NumericsGuard {
 public:
  static constexpr int64_t kWindow = 128, kLag = 4;

  /// `tokens` are those of a step. `stages` has the jobs of all stages.
  NumericsGuard(const RunConfig& config, int64_t tokens, const std::vector<std::shared_ptr<const Job>>& stages);

  /// Continues after `step` with the history of a checkpoint. Must be called before the first judge().
  void resume(int64_t step, const checkpoint::NumericsHistory& history);
  /// Returns the history after the last judged step. Pure.
  const checkpoint::NumericsHistory& history() const { return history_; }

  /// Writes the limits of `step` for Clip: that of the norm and that of the sum of the losses. All steps up to step -
  /// kLag must be judged. Any thread may call this while later steps are judged. Pure.
  void write_limits(int64_t step, std::span<float> limits) const;
  /// Judges an ended step. Steps come in order. Prints a warning for a spike and for a skipped update. Returns the
  /// reason why the run cannot continue; empty: it can. The result is the same on all ranks.
  std::string judge(int64_t step, const Rank::Report& report);
  /// Returns the history that this step would leave if it were judged next, or none if the run could not continue.
  /// Pure.
  std::optional<checkpoint::NumericsHistory> history_after(int64_t step, const Rank::Report& report) const;

 private:
  struct Verdict {
    int64_t skips = 0;            // in a row, including this step
    std::string reason, warning;  // at most one is set: the run cannot continue, or it can
  };
  Verdict consider(int64_t step, const Rank::Report& report, int64_t skips) const;
  struct Expected {
    std::optional<Window> loss, norm;
  };
  const Expected& expected(int64_t step) const { return expected_[static_cast<size_t>(step) % expected_.size()]; }
  /// Adds a step to the history, and sets what is expected of step + kLag.
  void record(int64_t step, double loss, double norm);
  /// Returns "the loss is nan and the gradient norm nan; ...", or which value is a spike; empty: nothing is unusual.
  std::string finding(int64_t step, const Rank::Report& report) const;

  const Train train_;
  const bool has_norm_;
  const double tokens_;
  std::vector<std::string> gradients_;  // by part of the norm: its tensor
  checkpoint::NumericsHistory history_;
  std::array<Expected, 8> expected_;  // by step; while step k runs, the entries of k - 2 to k + kLag are in use
};

}  // namespace slipstream::runtime
