// SPDX-License-Identifier: Apache-2.0
#pragma once
// Medians, and the median absolute deviation, a measure of noise that a few large values do not move.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace slipstream {

/// Pure. Returns the mean of the two middle values if their number is even, and 0 if there are no values.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// Pure. Returns the standard deviation of the normal distribution that has the same median absolute deviation.
inline double robust_deviation(std::vector<double> values) {
  const double center = median(values);
  for (double& value : values) value = std::abs(value - center);
  return 1.4826 * median(std::move(values));
}

/// Medians of all values but one. Each takes logarithmic time.
class MedianOfOthers {
 public:
  /// `values` has at least two values.
  explicit MedianOfOthers(std::vector<double> values) : sorted_(std::move(values)) {
    std::sort(sorted_.begin(), sorted_.end());
  }
  /// Returns the median of all values but `value`, which must be one of them.
  double without(double value) const {
    const auto left_out =
        static_cast<size_t>(std::lower_bound(sorted_.begin(), sorted_.end(), value) - sorted_.begin());
    const auto at = [&](size_t i) { return sorted_[i < left_out ? i : i + 1]; };
    const size_t size = sorted_.size() - 1;
    return size % 2 == 1 ? at(size / 2) : (at(size / 2 - 1) + at(size / 2)) / 2;
  }

 private:
  std::vector<double> sorted_;
};

}  // namespace slipstream
