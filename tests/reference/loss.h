// SPDX-License-Identifier: Apache-2.0
#pragma once
// Softmax cross-entropy in double, two plain passes over a dense row.

#include <cmath>
#include <cstdint>
#include <vector>

namespace slipstream::reference {

/// -log softmax(logits)[target].
inline double row_loss(const std::vector<double>& logits, int64_t target) {
  double largest = logits[0], sum = 0.0;
  for (double logit : logits) largest = std::fmax(largest, logit);
  for (double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum) - logits[static_cast<size_t>(target)];
}

/// Its derivative by the logits.
inline std::vector<double> row_gradient(const std::vector<double>& logits, int64_t target) {
  std::vector<double> gradient;
  for (size_t j = 0; j < logits.size(); ++j)
    gradient.push_back(std::exp(-row_loss(logits, static_cast<int64_t>(j))) -
                       (static_cast<int64_t>(j) == target ? 1.0 : 0.0));
  return gradient;
}

}  // namespace slipstream::reference
