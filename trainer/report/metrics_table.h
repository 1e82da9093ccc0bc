// SPDX-License-Identifier: Apache-2.0
#pragma once
// metrics.jsonl as columns.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/report/columns.h"
#include "trainer/report/lines.h"

namespace slipstream::report {

struct MetricsTable {
  std::vector<int64_t> steps;       // ascending
  std::vector<Series> columns;      // every numeric field except `step`, in the order of the first line that has it
  std::vector<Series> causes;       // exposed time in ms by the kind of the awaited task, the largest sum first
  std::vector<int64_t> skipped;     // steps without an update
  int64_t repeated = 0;             // the number of lines whose step a later line has again
  std::vector<std::string> hashes;  // "step hash" of the last params_hash

  const Series* find(std::string_view name) const;
};

/// Returns the task's name without the numbers of buckets, layers, parts and micro-batches: "recv.d_residual.part0/3"
/// is of the kind "recv.d_residual". Pure.
std::string kind_of_task(std::string_view name);

/// Blocks. Lines of other versions may lack fields or have more of them. From a damaged file, the result has the
/// columns of its sound lines.
MetricsTable read_metrics(const std::string& folder, Missing& missing);

}  // namespace slipstream::report
