// SPDX-License-Identifier: Apache-2.0
// Weighs tokens by their logits and draws one.

#include "runtime/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/check.h"
#include "kernels/decode/decode.h"

namespace slipstream::runtime {
namespace {

void penalise(std::span<float> logits, double penalty, std::span<const int32_t> before) {
  if (penalty == 1) return;
  std::vector<bool> seen(logits.size());
  for (const int32_t id : before) {
    const auto at = static_cast<size_t>(id);
    if (at >= logits.size() || seen[at]) continue;
    seen[at] = true;
    const double less = logits[at] > 0 ? logits[at] / penalty : logits[at] * penalty;
    logits[at] = static_cast<float>(
        std::clamp<double>(less, std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max()));
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
void keep_most_likely(std::span<float> weights, double share) {
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
  std::vector<float> kept;
  double sum = 0;
  for (const size_t at : order) {
    if (sum >= enough && sum > 0) break;
    sum += static_cast<double>(weights[at]);
    kept.push_back(weights[at]);
  }
  std::fill(weights.begin(), weights.end(), 0.0f);
  for (size_t i = 0; i < kept.size(); ++i) weights[order[i]] = kept[i];
}

/// Several maxima at once, as sums.
float highest_of(std::span<const float> logits) {
  constexpr size_t kMaxima = 16;
  float maxima[kMaxima];
  std::fill(std::begin(maxima), std::end(maxima), -INFINITY);
  size_t i = 0;
  for (; i + kMaxima <= logits.size(); i += kMaxima)
    for (size_t m = 0; m < kMaxima; ++m) maxima[m] = logits[i + m] > maxima[m] ? logits[i + m] : maxima[m];
  for (; i < logits.size(); ++i) maxima[0] = std::max(maxima[0], logits[i]);
  return *std::max_element(std::begin(maxima), std::end(maxima));
}

/// The logit that has rank `k` from above, at least 1. Selects only among logits from a floor on, which falls until
/// they suffice.
float kth_highest(std::span<const float> logits, float top, size_t k) {
  std::vector<float> some;
  for (float below = 4;; below *= 2) {
    const float floor = top - below;
    some.clear();
    for (const float logit : logits)
      if (logit >= floor) some.push_back(logit);
    if (some.size() >= k) break;
  }
  std::nth_element(some.begin(), some.begin() + static_cast<std::ptrdiff_t>(k - 1), some.end(), std::greater<>());
  return some[k - 1];
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

int32_t sample(std::span<float> logits, const SamplingOptions& options, std::span<const int32_t> before,
               double uniform) {
  penalise(logits, options.repetition_penalty, before);
  const float top = highest_of(logits);
  if (options.temperature == 0)
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), top) - logits.begin());
  const auto k = static_cast<size_t>(options.top_k);
  const float floor = k > 0 && k < logits.size() ? kth_highest(logits, top, k) : -INFINITY;
  const std::span<float> weights = logits;
  ThreadPool alone(1);  // the caller's: it may sample for other texts on other threads
  LaunchContext context;
  context.pool = &alone;
  kernels::token_weights(context, {.logits = logits.data(),
                                   .weights = weights.data(),
                                   .elems = std::ssize(logits),
                                   .top = top,
                                   .floor = floor,
                                   .temperature = options.temperature});
  if (options.top_p < 1) keep_most_likely(weights, options.top_p);
  if (options.min_p > 0)
    for (float& weight : weights)
      if (weight < options.min_p) weight = 0;  // the most likely token weighs 1
  return drawn(weights, uniform);
}

}  // namespace slipstream::runtime
