// SPDX-License-Identifier: Apache-2.0
// Computes linear warm-up and cosine decay.

#include "engine/config/learning_rate.h"

#include <cmath>
#include <numbers>

namespace slipstream {

double learning_rate(const Optimizer& o, int64_t step) {
  if (step < o.warmup_steps) return o.learning_rate * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  if (step >= o.decay_steps) return o.min_learning_rate;
  const double share = static_cast<double>(step - o.warmup_steps) / static_cast<double>(o.decay_steps - o.warmup_steps);
  return o.min_learning_rate + 0.5 * (o.learning_rate - o.min_learning_rate) * (1 + std::cos(std::numbers::pi * share));
}

}  // namespace slipstream
