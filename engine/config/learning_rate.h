// SPDX-License-Identifier: Apache-2.0
#pragma once
// The learning rate of every step, from the keys of [optimizer].

#include <cstdint>

#include "engine/config/config.h"

namespace slipstream {

/// Linear warm-up from 0 over warmup_steps, then by the schedule: a cosine or a line to min_learning_rate at
/// decay_steps and constant after; the full rate until cooldown_steps before decay_steps and a line from there (Hu et
/// al. 2024, arXiv:2404.06395); or the full rate for ever. `step` from 1. Pure.
double learning_rate(const Optimizer& optimizer, int64_t step);

}  // namespace slipstream
