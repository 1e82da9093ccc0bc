// SPDX-License-Identifier: Apache-2.0
#pragma once
// A finished run beside its plan: where the difference between the measured and the planned step comes from.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/report/planned.h"
#include "trainer/report/trace_spans.h"

namespace slipstream::report {

/// Time of the compute stream in a mean step: an item that computes, or the wait for a task. The time of an item begins
/// when nothing before it runs and no event is missing: it contains the time until its thread gets a core.
struct Reconciled {
  std::string name;      // "mlp.3", or the awaited task
  bool is_wait = false;  // compute waited for it
  double planned_ns = 0, measured_ns = 0;
  double more_ns() const { return measured_ns - planned_ns; }
};

struct Reconciliation {
  double planned_ns = 0, measured_ns = 0;  // of a step
  std::vector<Reconciled> tasks;           // the largest difference first; with `unnamed_ns` they add up to the gap
  double unnamed_ns = 0;                   // after the last task of the step
  double late_ns = 0;                      // within the measured times: before works began
  int64_t steps = 0, ranks = 0;            // traced steps that another one follows, and their ranks

  double gap_ns() const { return measured_ns - planned_ns; }
  /// The share of the differences, taken without their signs, that have a task's name.
  double named_share() const;
};

/// Pure. Means over ranks and over traced steps that another traced step follows.
/// Throws: DataError if the plan has no times or no traced step follows another.
Reconciliation reconcile(const Planned& planned, const Trace& trace);

/// Blocks. Reads the plan and the trace of a run folder.
/// Throws: DataError with one sentence if a file is missing, damaged, of another version or another run.
Reconciliation reconcile_run(const std::string& folder);

/// Pure. A table, worst first, of at most `rows` tasks.
std::string table_of(const Reconciliation& result, size_t rows);
Json json_of(const Reconciliation& result);

}  // namespace slipstream::report
