// SPDX-License-Identifier: Apache-2.0
// Shortens series to columns with their smallest, largest and mean value.

#include "trainer/report/columns.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <fmt/core.h>

namespace slipstream::report {
namespace {

size_t columns_for(size_t count) { return std::min(count, kColumns); }
size_t first_of(size_t column, size_t count) { return column * count / columns_for(count); }

}  // namespace

double rounded(double value) {
  return std::isfinite(value) ? std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr) : value;
}

Json column_starts(const std::vector<int64_t>& steps) {
  Json starts = Json::array();
  for (size_t column = 0; column < columns_for(steps.size()); ++column)
    starts.push_back(steps[first_of(column, steps.size())]);
  return starts;
}

Json columns_of(const std::vector<double>& values) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  Json mean = Json::array(), least = Json::array(), most = Json::array();
  for (size_t column = 0; column < columns_for(values.size()); ++column) {
    double sum = 0, low = none, high = none;
    int64_t count = 0;
    for (size_t i = first_of(column, values.size()); i < first_of(column + 1, values.size()); ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      low = std::isnan(low) ? values[i] : std::min(low, values[i]);
      high = std::isnan(high) ? values[i] : std::max(high, values[i]);
      ++count;
    }
    // Values are scaled before the sum, which could otherwise overflow.
    mean.push_back(count == 0 ? none : rounded(std::isfinite(sum) ? sum / static_cast<double>(count) : high));
    least.push_back(rounded(low));
    most.push_back(rounded(high));
  }
  Json columns = Json::object();
  columns["mean"] = std::move(mean);
  if (values.size() <= kColumns) return columns;
  columns["min"] = std::move(least);
  columns["max"] = std::move(most);
  return columns;
}

}  // namespace slipstream::report
