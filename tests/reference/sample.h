// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choice of tokens in double, and a test of frequencies.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/sample/sample.h"
#include "tests/kernels/common/op_test.h"

namespace slipstream::reference {

using test::Doubles;

inline std::vector<uint32_t> token_set(int64_t vocab, const std::vector<int32_t>& tokens) {
  std::vector<uint32_t> words(static_cast<size_t>(kernels::token_set_words(vocab)));
  for (const int32_t token : tokens) words[static_cast<size_t>(token / 32)] |= 1u << token % 32;
  return words;
}

/// The weight of each token, up to a common factor, by sorting all of them. Temperature above 0.
inline Doubles token_weights(const std::vector<float>& logits, const kernels::SamplingOptions& o,
                             const std::vector<int32_t>& before = {}) {
  const size_t vocab = logits.size();
  Doubles penalised(logits.begin(), logits.end()), weights(vocab);
  const std::vector<uint32_t> seen = token_set(static_cast<int64_t>(vocab), before);
  for (size_t i = 0; i < vocab; ++i)
    if (seen[i / 32] >> i % 32 & 1)
      penalised[i] = penalised[i] > 0 ? penalised[i] / o.repetition_penalty : penalised[i] * o.repetition_penalty;
  const double top = *std::max_element(penalised.begin(), penalised.end());
  Doubles sorted = penalised;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double floor =
      o.top_k > 0 && static_cast<size_t>(o.top_k) < vocab ? sorted[static_cast<size_t>(o.top_k) - 1] : -INFINITY;
  std::vector<size_t> order(vocab);
  double total = 0, kept = 0;
  for (size_t i = 0; i < vocab; ++i) {
    order[i] = i;
    total += weights[i] = penalised[i] < floor ? 0 : std::exp((penalised[i] - top) / o.temperature);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  for (const size_t i : order) {
    if (kept >= o.top_p * total) weights[i] = 0;
    kept += weights[i];
  }
  for (double& weight : weights)
    if (weight < o.min_p) weight = 0;
  return weights;
}

/// Pearson's statistic of `counts` under probabilities in proportion to `weights` is less than five standard deviations
/// above its mean, and nothing without a weight occurred. Cells with fewer than 8 expected counts are one cell.
inline bool chi_square_is_plausible(const Doubles& counts, const Doubles& weights) {
  double draws = 0, total = 0, rare = 0, rare_count = 0, square = 0, cells = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (weights[i] == 0 && counts[i] > 0) return false;
    draws += counts[i], total += weights[i];
  }
  const auto add = [&](double count, double expected) {
    square += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * weights[i] / total;
    if (expected < 8)
      rare += expected, rare_count += counts[i];
    else
      add(counts[i], expected);
  }
  if (rare > 0) add(rare_count, std::max(rare, 1.0));
  const double freedom = cells - 1;
  return square < freedom + 5 * std::sqrt(2 * freedom) + 5;
}

}  // namespace slipstream::reference
