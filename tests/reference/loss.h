// SPDX-License-Identifier: Apache-2.0
#pragma once
// Softmax cross-entropy in double, two plain passes over a dense row.

#include <cmath>
#include <cstdint>
#include <vector>

namespace slipstream::reference {

/// log of the sum of exp(logit).
inline double log_sum(const std::vector<double>& logits) {
  double largest = logits[0], sum = 0.0;
  for (double logit : logits) largest = std::fmax(largest, logit);
  for (double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

/// -log softmax(logits)[target].
inline double row_loss(const std::vector<double>& logits, int64_t target) {
  return log_sum(logits) - logits[static_cast<size_t>(target)];
}

/// The derivative of the loss by the logits.
inline std::vector<double> row_gradient(const std::vector<double>& logits, int64_t target) {
  std::vector<double> gradient;
  const double log_sum_here = log_sum(logits);
  for (double logit : logits) gradient.push_back(std::exp(logit - log_sum_here));
  gradient[static_cast<size_t>(target)] -= 1.0;
  return gradient;
}

}  // namespace slipstream::reference
