// SPDX-License-Identifier: Apache-2.0
#pragma once
// One line of metrics.jsonl and one line of text, made from the measurements of all ranks.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"

namespace slipstream {

/// Values are means over ranks unless stated otherwise. Times are in milliseconds.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0;  // the mean over all tokens of the global batch
  std::optional<double> val_loss;
  double learning_rate = 0;
  std::optional<double> grad_norm;  // before clipping; none if the run does not compute it
  bool skipped = false;             // the step has no update
  int64_t tokens = 0;               // the tokens of this step on all ranks
  double step_ms = 0;
  double compute_ms = 0;
  double comm_ms = 0;
  double exposed_ms = 0;
  double hidden_ms = 0;       // the part of comm_ms during which compute ran
  double bubble_ms = 0;       // waits for communication that no faster network shortens; not part of exposed_ms
  double exposed_ms_max = 0;  // exposed_ms of the rank with the longest wait
  std::vector<std::pair<std::string, double>>
      exposed_by;  // the tasks that compute waited for, with their part of exposed_ms; largest first
  double input_ms = 0;
  double other_ms = 0;
  double skew_ms = 0;
  std::optional<double> bound_ms;  // rehearsed from this run's own op times, no more than its fastest step
  std::optional<double> mfu;       // when device.machine names a file: see utilization.h
  std::string params_hash;         // empty: not computed at this step

  double tokens_per_s() const { return step_ms > 0 ? 1e3 * static_cast<double>(tokens) / step_ms : 0; }
  /// Returns hidden_ms / comm_ms, or none if nothing was communicated.
  std::optional<double> hidden() const;
};

/// Pure. Returns true if the bubble exceeds 1 % of the step. Only then does the step line show it.
bool shows_bubble(double bubble_ms, double step_ms);

/// A field of metrics.jsonl. docs/reference/metrics.md has its meaning.
struct MetricField {
  std::string_view name;
  bool is_number;                                    // all sinks take this value as a number, with true as 1
  std::optional<Json> (*value)(const StepMetrics&);  // none: the line has no such field
};

/// Returns all fields in the order of the line. Pure.
std::span<const MetricField> metric_fields();

/// Returns the numbers of a step by name in the order of metric_fields(). None: the number is unknown or not finite.
/// Pure.
std::vector<std::pair<std::string_view, std::optional<double>>> metric_values(const StepMetrics& metrics);

/// Returns one JSON object without a newline. Reading a real number back gives the same value.
std::string metrics_json(const StepMetrics& metrics);

/// Returns a line such as "step 120/2000 | loss 2.314 | 45.2 ms | 17.0k tok/s | comm 12.3 ms, exposed 0.8 (93% hidden)
/// | 96% of bound | eta 1m32s".
std::string metrics_line(const StepMetrics& metrics, int64_t steps, double eta_seconds);

/// Returns "1m32s" for 92.
std::string format_eta(double seconds);

}  // namespace slipstream
