// SPDX-License-Identifier: Apache-2.0
#pragma once
// One line of metrics.jsonl and one line of text, from the measurements of all ranks.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"

namespace slipstream {

/// Means over ranks unless stated otherwise. Times in milliseconds.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0;  // mean over all tokens of the global batch
  std::optional<double> val_loss;
  double learning_rate = 0;
  std::optional<double> grad_norm;  // before clipping; none when the run does not compute it
  bool skipped = false;             // the step has no update
  int64_t tokens = 0;               // of this step, all ranks
  double step_ms = 0;
  double compute_ms = 0;
  double comm_ms = 0;
  double exposed_ms = 0;
  double hidden_ms = 0;       // of comm_ms: while compute ran
  double bubble_ms = 0;       // waits for communication that no faster network shortens; not part of exposed_ms
  double exposed_ms_max = 0;  // of the rank with the longest wait
  std::vector<std::pair<std::string, double>>
      exposed_by;  // the tasks that compute waited for, with their part of exposed_ms; largest first
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

/// Pure. True if the bubble exceeds 1 % of the step: the step line shows it then.
bool shows_bubble(double bubble_ms, double step_ms);

/// A field of metrics.jsonl.
struct MetricField {
  std::string_view name;
  bool is_number;                                    // is a value of all sinks, with true as 1
  std::optional<Json> (*value)(const StepMetrics&);  // none: the line has no such field
  std::string_view meaning;                          // Markdown, for docs/reference/metrics.md
};

/// All fields in the order of the line. Pure.
std::span<const MetricField> metric_fields();

/// The numbers of a step in the order of metric_fields(), by name; none: unknown or not finite. Pure.
std::vector<std::pair<std::string_view, std::optional<double>>> metric_values(const StepMetrics& metrics);

/// One JSON object without a newline; reading a real number back gives the same value.
std::string metrics_json(const StepMetrics& metrics);

/// "step 120/2000 | loss 2.314 | 45.2 ms | 17.0k tok/s | comm 12.3 ms, exposed 0.8 (93% hidden) | 96% of bound | eta
/// 1m32s"
std::string metrics_line(const StepMetrics& metrics, int64_t steps, double eta_seconds);

/// 92 -> "1m32s".
std::string format_eta(double seconds);

}  // namespace slipstream
