// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measured times of a trace by task and by kernel, beside the predictions of the plan.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/report/planned.h"
#include "trainer/report/trace_spans.h"

namespace slipstream::report {

/// A task of the plan in a mean step, summed over its micro-batches.
struct TaskTime {
  int stage = 0;
  std::string name, op, channel;
  int64_t runs = 0;         // in a step
  double predicted_ns = 0;  // for all runs
  /// For a kernel's item, the mean over ranks; for communication, the shortest of its members, which waited for no
  /// other.
  double measured_ns = 0;
  double sent_bytes = 0;
};
/// Returns the times, the largest difference first; empty without a plan or a trace. Pure.
std::vector<TaskTime> task_times(const Planned& planned, const Trace& trace);

/// Returns, for every rank and each of its spans, the time at the beginning of the span for which a communication
/// waited for its last member. It is the time of the item beyond that of the member that waited least, so that clocks
/// of hosts are not compared. Pure.
std::vector<std::vector<int64_t>> waits_inside(const Planned& planned, const Trace& trace);

/// All kernels of one name in a mean step of a mean rank.
struct KernelTime {
  std::string name;
  double runs = 0, measured_ns = 0, flops = 0, bytes = 0;
  double bound_ns = 0;  // by the rates of the machine; 0: not known
  bool is_compute_bound = false;
};
/// Returns the times, the longest first. Pure.
std::vector<KernelTime> kernel_times(const Planned& planned, const Trace& trace);

/// A pass of a micro-batch on a stage's compute stream.
struct Pass {
  enum class Kind : uint8_t { forward, backward, update };
  Kind kind = Kind::forward;
  int64_t micro_batch = 0;
  int64_t begin_ns = 0, ns = 0;
};
struct StageSchedule {
  int stage = 0;
  std::vector<Pass> predicted, measured;  // the passes of one step, from the first pass on any stage
};
/// Returns the schedules of pipelines. `measured` is the first whole step of the trace. Pure.
std::vector<StageSchedule> schedules(const Planned& planned, const Trace& trace);

}  // namespace slipstream::report
