// SPDX-License-Identifier: Apache-2.0
// Weighs tokens by their logits and draws one.

#include "runtime/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/check.h"
#include "kernels/decode/decode.h"

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

/// Several sums at once, because additions of one wait for each other.
double sum_of(std::span<const float> weights) {
  constexpr size_t kSums = 8;
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= weights.size(); i += kSums)
    for (size_t s = 0; s < kSums; ++s) sums[s] += static_cast<double>(weights[i + s]);
  for (; i < weights.size(); ++i) sums[0] += static_cast<double>(weights[i]);
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

/// Zeroes the weights outside the fewest that sum to `share` of all; the largest is 1. Sorts only weights from a floor
/// on, which falls until they suffice.
void keep_most_likely(std::vector<float>& weights, double share) {
  const double enough = share * sum_of(weights);
  std::vector<size_t> order;
  for (float floor = 0.1f;; floor = floor > 1e-30f ? floor * 0.1f : 0.0f) {
    order.clear();
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i)
      if (weights[i] > floor) {
        order.push_back(i);
        sum += static_cast<double>(weights[i]);
      }
    if (sum >= enough || floor == 0) break;
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  std::vector<float> kept(weights.size());
  double sum = 0;
  for (const size_t at : order) {
    if (sum >= enough && sum > 0) break;
    sum += static_cast<double>(weights[at]);
    kept[at] = weights[at];
  }
  weights = std::move(kept);
}

/// The index at which the sum of the weights passes `uniform` of all; block by block, then within one.
int32_t drawn(std::span<const float> weights, double uniform) {
  constexpr size_t kBlock = 256;
  std::vector<double> sums;
  for (size_t at = 0; at < weights.size(); at += kBlock)
    sums.push_back(sum_of(weights.subspan(at, std::min(kBlock, weights.size() - at))));
  double target = uniform * std::accumulate(sums.begin(), sums.end(), 0.0);
  size_t block = 0;
  while (block + 1 < sums.size() && target >= sums[block]) target -= sums[block++];
  size_t last = weights.size();  // with a weight: rounding may leave a rest of the target behind it
  for (size_t i = block * kBlock; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    last = i;
    target -= static_cast<double>(weights[i]);
    if (target < 0) break;
  }
  if (last < weights.size()) return static_cast<int32_t>(last);
  return static_cast<int32_t>(std::max_element(weights.begin(), weights.end()) - weights.begin());
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
  std::vector<float> weights(logits.size());
  ThreadPool alone(1);
  LaunchContext context;
  context.pool = &alone;
  kernels::token_weights(context, {.logits = logits.data(),
                                   .weights = weights.data(),
                                   .elems = std::ssize(logits),
                                   .top = *best,
                                   .floor = floor,
                                   .temperature = options.temperature});
  if (options.top_p < 1) keep_most_likely(weights, options.top_p);
  if (options.min_p > 0)
    for (float& weight : weights)
      if (weight < options.min_p) weight = 0;  // the most likely token weighs 1
  return drawn(weights, uniform);
}

}  // namespace slipstream::runtime
