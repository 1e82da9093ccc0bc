// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides which source of a mixture each sample comes from.
//
// The weights are whole numbers a_s without a common divisor, and P is their sum. The sources of P samples are computed
// once and then repeat. Sample j of source s may take a place from floor(j P / a_s) on and must take one before ceil((j
// + 1) P / a_s); every place goes to the sample that is due first. No sample is late. So, among the first n samples of
// the run, the number of samples of every source s differs from n a_s / P by less than 1. Source: Baruah, Cohen,
// Plaxton, Varvel 1996, "Proportionate progress: a notion of fairness in resource allocation".

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace slipstream::data {

class Mixture {
 public:
  /// The longest period, with 8 bytes per sample.
  static constexpr int64_t kPeriodMax = 1 << 20;

  /// Makes a mixture of one source.
  Mixture() = default;
  /// The weights have at most 6 digits after the decimal point. Throws: ConfigError for a negative one, more digits, a
  /// sum of 0, or a period above kPeriodMax.
  explicit Mixture(std::span<const double> weights);

  struct Place {
    int64_t source = 0;
    uint64_t index = 0;  // the index of the sample among those of its source
  };
  /// Pure.
  Place place_of(uint64_t sample) const;
  /// Returns P. Pure.
  int64_t period() const { return table_ ? static_cast<int64_t>(table_->places.size()) : 1; }

 private:
  struct Table {
    std::vector<uint64_t> counts;  // the samples of each source in a period
    struct Entry {
      uint32_t source = 0;
      uint32_t before = 0;  // the samples of the source before this one
    };
    std::vector<Entry> places;
  };
  std::shared_ptr<const Table> table_;
};

}  // namespace slipstream::data
