// SPDX-License-Identifier: Apache-2.0
#pragma once
// Live metrics of a run beside metrics.jsonl: a CSV file, TensorBoard event files, an endpoint for Prometheus.

#include <memory>
#include <string>

#include "engine/config/config.h"
#include "engine/report/metrics.h"
#include "trainer/runtime/loop/metrics_endpoint.h"

namespace slipstream::runtime {

/// Of rank 0. A sink that fails prints one warning and ends; training goes on.
class MetricSinks {
 public:
  /// Blocks. Opens what `output` names. Files keep the steps up to `resumed_step`, 0 for a new run.
  MetricSinks(const Output& output, int64_t resumed_step);
  ~MetricSinks();
  MetricSinks(const MetricSinks&) = delete;
  MetricSinks& operator=(const MetricSinks&) = delete;

  /// Blocks while it writes.
  void add(const StepMetrics& metrics);
  /// Blocks. Forgets the steps behind `step`, which the run repeats.
  void keep(int64_t step);

 private:
  class AppendedFile;

  void open_csv(int64_t step);
  void open_events();
  void write_events(const std::string& record);

  Output output_;
  std::unique_ptr<AppendedFile> csv_, events_;  // none: not asked for, or failed
  std::unique_ptr<MetricsEndpoint> endpoint_;
};

/// The text that the endpoint answers: a gauge slipstream_NAME per number of `metrics`. `unix_s`: the time of the step
/// in seconds since 1970. Pure.
std::string prometheus_text(const StepMetrics& metrics, double unix_s);

}  // namespace slipstream::runtime
