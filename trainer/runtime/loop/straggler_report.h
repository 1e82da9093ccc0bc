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

/// Pure. One line of stragglers.jsonl.
std::string straggler_json(const Straggler& straggler, const PlanItems& items);

/// One thread uses it, the host's that issues the steps.
class StragglerReport {
 public:
  /// Borrows all. `threshold` 0: measures and reports nothing.
  StragglerReport(World& world, const PlanItems& items, double threshold, RunDir& run_dir);

  /// The host has issued `step`.
  void issued(int64_t step);
  /// Times of an ended step, for gather_steps(); none if nothing is reported. `fastest_ns` as of own_times().
  std::optional<OwnTimes> own(const StepTimes& times, const std::vector<int64_t>& fastest_ns);
  /// Blocks while it writes. Takes the steps behind `first` in order.
  void add(const std::vector<OwnSample>& samples, int64_t first);
  /// Judges the last steps and prints what all stragglers have cost.
  void finish();

 private:
  void report(const std::vector<Straggler>& stragglers);

  World& world_;
  const PlanItems& items_;
  bool measures_;
  ThreadUsage usage_;
  int64_t stopped_ns_ = 0;                     // of this process, up to the last ended step
  std::map<int64_t, int64_t> ready_ns_;        // by step: the host waited for a core before it had issued it
  std::optional<StragglerDetector> detector_;  // rank 0
  RunDir& run_dir_;
};

}  // namespace slipstream::runtime
