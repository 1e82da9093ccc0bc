// SPDX-License-Identifier: Apache-2.0
// Weighs tokens by their logits and draws one.

#include "runtime/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/check.h"

namespace slipstream::runtime {
namespace {

void penalise(std::vector<float>& logits, double penalty, std::span<const int32_t> before) {
  if (penalty == 1) return;
  std::vector<bool> seen(logits.size());
  for (const int32_t id : before) {
    const auto at = static_cast<size_t>(id);
    if (at >= logits.size() || seen[at]) continue;
    seen[at] = true;
    logits[at] = static_cast<float>(logits[at] > 0 ? logits[at] / penalty : logits[at] * penalty);
  }
}

/// Zeroes the weights outside the fewest that sum to `share` of all.
void keep_most_likely(std::vector<double>& weights, double share) {
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  const double enough = share * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  for (const size_t at : order) {
    const bool full = sum >= enough && sum > 0;
    sum += weights[at];
    if (full) weights[at] = 0;
  }
}

}  // namespace

void check_sampling(const SamplingOptions& o) {
  if (!(o.temperature >= 0)) throw ConfigError("--temperature {} must be at least 0.", o.temperature);
  if (o.top_k < 0) throw ConfigError("--top-k {} must be at least 0 (0: all tokens).", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) throw ConfigError("--top-p {} must be above 0 and at most 1.", o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1)) throw ConfigError("--min-p {} must be from 0 to 1.", o.min_p);
  if (!(o.repetition_penalty > 0 && o.repetition_penalty <= 100))
    throw ConfigError("--repetition-penalty {} must be above 0 and at most 100 (1: none).", o.repetition_penalty);
}

int32_t sample(std::vector<float> logits, const SamplingOptions& options, std::span<const int32_t> before,
               double uniform) {
  penalise(logits, options.repetition_penalty, before);
  const auto best = std::max_element(logits.begin(), logits.end());
  const auto best_id = static_cast<int32_t>(best - logits.begin());
  if (options.temperature == 0) return best_id;
  float floor = -INFINITY;
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < logits.size()) {
    std::vector<float> sorted = logits;
    std::nth_element(sorted.begin(), sorted.begin() + (options.top_k - 1), sorted.end(), std::greater<>());
    floor = sorted[static_cast<size_t>(options.top_k) - 1];
  }
  const double top = *best;
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    weights[i] = logits[i] < floor ? 0.0 : std::exp((logits[i] - top) / options.temperature);
  if (options.top_p < 1) keep_most_likely(weights, options.top_p);
  if (options.min_p > 0)
    for (double& weight : weights)
      if (weight < options.min_p) weight = 0;  // the most likely token weighs 1
  double target = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    target -= weights[i];
    if (target < 0) return static_cast<int32_t>(i);
  }
  return best_id;
}

}  // namespace slipstream::runtime
