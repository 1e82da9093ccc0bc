// SPDX-License-Identifier: Apache-2.0
#pragma once
// The learning rate of every step, from the keys of [optimizer].

#include <cstdint>

#include "engine/config/config.h"

namespace slipstream {

/// Linear warm-up from 0 over warmup_steps, cosine to min_learning_rate at decay_steps, constant after. `step` from 1.
/// Pure.
double learning_rate(const Optimizer& optimizer, int64_t step);

}  // namespace slipstream
