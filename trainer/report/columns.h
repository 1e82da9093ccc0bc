// SPDX-License-Identifier: Apache-2.0
#pragma once
// The series of a run with one value per step, shortened to the columns of a chart without losing a peak.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/json.h"

namespace slipstream::report {

/// One value per step. NaN: the step has no such value.
struct Series {
  std::string name;
  std::vector<double> values;
};

/// The columns of a chart. If there are more steps, several steps share a column.
constexpr size_t kColumns = 480;

/// Pure. Returns the value with six significant digits, for a chart.
double rounded(double value);

/// Pure. Returns the first step of every column. `steps` are ascending.
Json column_starts(const std::vector<int64_t>& steps);

/// Pure. Returns {"mean": [..]} by column, with "min" and "max" if columns hold several steps; null where a column has
/// no value.
Json columns_of(const std::vector<double>& values);

}  // namespace slipstream::report
