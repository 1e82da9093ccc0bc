// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measures the own times of this rank, and on rank 0 prints and records the stragglers of the run.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/thread_usage.h"
#include "engine/report/stragglers.h"
#include "trainer/runtime/loop/step_means.h"
#include "trainer/runtime/run_folder/run_dir.h"

namespace slipstream::runtime {

/// Pure. Returns one line of stragglers.jsonl.
std::string straggler_json(const Straggler& straggler, const PlanItems& items);

/// Only the host's thread that issues the steps uses it.
class StragglerReport {
 public:
  /// Borrows all arguments. With `threshold` 0, it measures and reports nothing.
  StragglerReport(World& world, const PlanItems& items, double threshold, RunDir& run_dir);

  /// The host has issued `step`.
  void issued(int64_t step);
  /// Returns the times of an ended step for gather_steps(), or none if nothing is reported. `fastest_ns` is that of
  /// own_times().
  std::optional<OwnTimes> own(const StepTimes& times, const std::vector<int64_t>& fastest_ns);
  /// Blocks while it writes. Takes the steps after `first` in their order.
  void add(const std::vector<OwnSample>& samples, int64_t first);
  /// Judges the last steps and prints what all stragglers have cost.
  void finish();

 private:
  void report(const std::vector<Straggler>& stragglers);

  World& world_;
  const PlanItems& items_;
  bool measures_;
  ThreadUsage usage_;
  int64_t stopped_ns_ = 0;  // the time for which this process was stopped, up to the last ended step
  /// By step: the time for which the host waited for a core before it had issued the step.
  std::map<int64_t, int64_t> ready_ns_;
  std::optional<StragglerDetector> detector_;  // on rank 0
  RunDir& run_dir_;
};

}  // namespace slipstream::runtime
