// SPDX-License-Identifier: Apache-2.0
// Schedules the samples of a mixture's sources by their deadlines.

#include "engine/data/datasets/mixture.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <queue>

#include "engine/base/check.h"

namespace slipstream::data {
namespace {

constexpr double kUnit = 1e6;  // the unit of weights is its inverse

/// Returns the weights as whole numbers without a common divisor.
std::vector<uint64_t> whole_weights(std::span<const double> weights) {
  std::vector<uint64_t> whole;
  uint64_t divisor = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double scaled = weights[i] * kUnit;
    if (!(weights[i] >= 0 && weights[i] <= 1e6))
      throw ConfigError("[config] data.weights[{}] = {}, need 0 to 1000000. Change it.", i, weights[i]);
    if (std::abs(scaled - std::round(scaled)) > 1e-3)
      throw ConfigError("[config] data.weights[{}] = {} has more than 6 digits after the decimal point. Round it.", i,
                        weights[i]);
    whole.push_back(static_cast<uint64_t>(std::llround(scaled)));
    divisor = std::gcd(divisor, whole.back());
  }
  if (divisor == 0)
    throw ConfigError("[config] data.weights: all {} are 0, need a sum above 0. Change them.", weights.size());
  for (uint64_t& weight : whole) weight /= divisor;
  return whole;
}

struct Due {
  uint64_t time = 0;  // the time from which the sample may take its place, or before which it must
  uint32_t source = 0;
  auto operator<=>(const Due&) const = default;
};
using Queue = std::priority_queue<Due, std::vector<Due>, std::greater<>>;

}  // namespace

Mixture::Mixture(std::span<const double> weights) {
  SLIP_ASSERT(!weights.empty());
  auto table = std::make_shared<Table>();
  table->counts = whole_weights(weights);
  const uint64_t period = std::accumulate(table->counts.begin(), table->counts.end(), uint64_t{0});
  if (period > static_cast<uint64_t>(kPeriodMax))
    throw ConfigError(
        "[config] data.weights: the smallest whole numbers with these ratios add up to {}, need at most {}. Round the "
        "weights, for instance to 3 digits.",
        period, kPeriodMax);
  std::vector<uint32_t> begun(weights.size());
  Queue waiting, ready;  // ordered by the time from which, and before which, a sample may take its place
  for (uint32_t source = 0; source < weights.size(); ++source)
    if (table->counts[source] > 0) waiting.push({0, source});
  for (uint64_t place = 0; place < period; ++place) {
    for (; !waiting.empty() && waiting.top().time <= place; waiting.pop()) {
      const uint32_t source = waiting.top().source;
      const uint64_t count = table->counts[source];
      ready.push({((begun[source] + 1) * period + count - 1) / count, source});
    }
    SLIP_ASSERT(!ready.empty() && ready.top().time > place);
    const uint32_t source = ready.top().source;
    ready.pop();
    table->places.push_back({source, begun[source]++});
    if (begun[source] < table->counts[source]) waiting.push({begun[source] * period / table->counts[source], source});
  }
  table_ = std::move(table);
}

Mixture::Place Mixture::place_of(uint64_t sample) const {
  if (!table_) return {.source = 0, .index = sample};
  const uint64_t period = table_->places.size();
  const Table::Entry& entry = table_->places[sample % period];
  return {.source = entry.source, .index = sample / period * table_->counts[entry.source] + entry.before};
}

}  // namespace slipstream::data
