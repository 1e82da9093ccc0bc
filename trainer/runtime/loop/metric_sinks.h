// SPDX-License-Identifier: Apache-2.0
#pragma once
// Live metrics of a run in addition to metrics.jsonl: a CSV file, TensorBoard event files, and an endpoint for
// Prometheus.

#include <memory>
#include <string>

#include "engine/config/config.h"
#include "engine/report/metrics.h"
#include "trainer/runtime/loop/metrics_endpoint.h"

namespace slipstream::runtime {

/// The sinks of rank 0. A sink that fails prints one warning and ends, and training continues.
class MetricSinks {
 public:
  /// Blocks. Opens what `output` names. Files keep the steps up to `resumed_step`, which is 0 for a new run.
  MetricSinks(const Output& output, int64_t resumed_step);
  ~MetricSinks();
  MetricSinks(const MetricSinks&) = delete;
  MetricSinks& operator=(const MetricSinks&) = delete;

  /// Blocks while it writes.
  void add(const StepMetrics& metrics);
  /// Blocks. Removes the steps after `step`, which the run repeats.
  void keep(int64_t step);

 private:
  class AppendedFile;

  void open_csv(int64_t step);
  void open_events();
  void write_events(const std::string& record);

  Output output_;
  std::unique_ptr<AppendedFile> csv_, events_;  // null: not asked for, or failed
  std::unique_ptr<MetricsEndpoint> endpoint_;
};

/// Returns the text that the endpoint answers: a gauge slipstream_NAME for each number of `metrics`. `unix_s` is the
/// time of the step in seconds since 1970. Pure.
std::string prometheus_text(const StepMetrics& metrics, double unix_s);

}  // namespace slipstream::runtime
