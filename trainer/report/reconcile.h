// SPDX-License-Identifier: Apache-2.0
#pragma once
// Compares a finished run with its plan: where the difference between the measured and the planned step comes from.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/report/planned.h"
#include "trainer/report/trace_spans.h"

namespace slipstream::report {

/// Time of the compute stream in a mean step: an item that computes, or the wait for a task. The time of an item begins
/// when nothing before it runs and no event is missing, so that it includes the time until its thread gets a core.
struct Reconciled {
  std::string name;      // "mlp.3", or the awaited task
  bool is_wait = false;  // compute waited for the task
  double planned_ns = 0, measured_ns = 0;
  double more_ns() const { return measured_ns - planned_ns; }
};

struct Reconciliation {
  double planned_ns = 0, measured_ns = 0;  // for a step
  std::vector<Reconciled> tasks;           // the largest difference first; with `unnamed_ns` they add up to the gap
  double unnamed_ns = 0;                   // after the last task of the step
  double late_ns = 0;                      // the part of the measured times before works began
  int64_t steps = 0, ranks = 0;            // the traced steps that another one follows, and their ranks

  double gap_ns() const { return measured_ns - planned_ns; }
  /// Returns the share of the differences, taken without their signs, that have a task's name.
  double named_share() const;
};

/// Pure. Computes means over ranks and over the traced steps that another traced step follows.
/// Throws: DataError if the plan has no times or no traced step follows another one.
Reconciliation reconcile(const Planned& planned, const Trace& trace);

/// Blocks. Reads the plan and the trace of a run folder.
/// Throws: DataError with one sentence if a file is missing or damaged, or belongs to another version or run.
Reconciliation reconcile_run(const std::string& folder);

/// Pure. Returns a table of at most `rows` tasks, the worst first.
std::string table_of(const Reconciliation& result, size_t rows);
Json json_of(const Reconciliation& result);

}  // namespace slipstream::report
