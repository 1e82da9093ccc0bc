// SPDX-License-Identifier: Apache-2.0
// Computes warm-up and decay.

#include "engine/config/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace slipstream {

double learning_rate(const Optimizer& o, int64_t step) {
  if (step < o.warmup_steps) return o.learning_rate * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  if (o.schedule == RateSchedule::constant) return o.learning_rate;
  if (step >= o.decay_steps) return o.min_learning_rate;
  int64_t begin = o.warmup_steps;
  if (o.schedule == RateSchedule::warmup_stable_decay) {
    const int64_t cooldown_steps = o.cooldown_steps > 0 ? o.cooldown_steps : std::max<int64_t>(1, o.decay_steps / 10);
    begin = std::max(begin, o.decay_steps - cooldown_steps);
    if (step <= begin) return o.learning_rate;
  }
  const double share = static_cast<double>(step - begin) / static_cast<double>(o.decay_steps - begin);
  const double left = o.schedule == RateSchedule::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * share)) : 1 - share;
  return o.min_learning_rate + (o.learning_rate - o.min_learning_rate) * left;
}

}  // namespace slipstream
