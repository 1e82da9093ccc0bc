// SPDX-License-Identifier: Apache-2.0
#pragma once
// One line of metrics.jsonl and one line for a person, from what the ranks measured of a step.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace slipstream {

/// Means over ranks unless said otherwise. Times in milliseconds.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0;  // mean over all tokens of the global batch
  std::optional<double> val_loss;
  double learning_rate = 0;
  std::optional<double> grad_norm;  // before clipping; none when the run does not clip
  int64_t tokens = 0;               // of this step, all ranks
  double step_ms = 0;
  double compute_ms = 0;
  double comm_ms = 0;
  double exposed_ms = 0;
  double hidden_ms = 0;       // of comm_ms: under compute
  double bubble_ms = 0;       // waits for communication that a faster network would not shorten; not in exposed_ms
  double exposed_ms_max = 0;  // of the rank that waited longest
  std::vector<std::pair<std::string, double>>
      exposed_by;  // the task that compute waited for, and its part of exposed_ms; the largest first
  double input_ms = 0;
  double other_ms = 0;
  double skew_ms = 0;
  std::optional<double> bound_ms;  // rehearsed from this run's own op times, no more than its fastest step
  std::optional<double> mfu;       // when device.machine names a file: see utilization.h
  std::string params_hash;         // empty: not computed at this step

  double tokens_per_s() const { return step_ms > 0 ? 1e3 * static_cast<double>(tokens) / step_ms : 0; }
  /// hidden_ms / comm_ms; none when nothing was communicated.
  std::optional<double> hidden() const;
};

/// Is a bubble long enough for a line that a person reads? Ranks that share no pipeline wait a little for each other.
/// Pure.
bool shows_bubble(double bubble_ms, double step_ms);

/// One JSON object, no newline; reals read back the same.
std::string metrics_json(const StepMetrics& metrics);

/// "step 120/2000 | loss 2.314 | 45.2 ms | 17.0k tok/s | comm 12.3 ms, exposed 0.8 (93% hidden) | 96% of bound | eta
/// 1m32s"
std::string metrics_line(const StepMetrics& metrics, int64_t steps, double eta_seconds);

/// 92 -> "1m32s".
std::string format_eta(double seconds);

}  // namespace slipstream
