// SPDX-License-Identifier: Apache-2.0
#pragma once
// Series of a run with one value per step, shortened to the columns of a chart without losing a peak.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/json.h"

namespace slipstream::report {

/// NaN: the step has no such value.
struct Series {
  std::string name;
  std::vector<double> values;
};

/// Columns of a chart: more steps than that share columns.
constexpr size_t kColumns = 480;

/// Pure. The value with six significant digits, for a chart.
double rounded(double value);

/// Pure. The first step of every column, of steps in ascending order.
Json column_starts(const std::vector<int64_t>& steps);

/// Pure. {"mean": [..]} by column, with "min" and "max" where columns hold several steps; null where a column has no
/// value.
Json columns_of(const std::vector<double>& values);

}  // namespace slipstream::report
