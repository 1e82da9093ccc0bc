// SPDX-License-Identifier: Apache-2.0
#pragma once
// The learning rate of every step, from the keys of [optimizer].

#include <cstdint>

#include "engine/config/config.h"

namespace slipstream {

/// Returns the learning rate of `step`, which counts from 1. A linear warm-up from 0 takes warmup_steps. Then the
/// schedule decides: a cosine or a line to min_learning_rate at decay_steps, constant afterwards; the full rate until
/// cooldown_steps before decay_steps, then a line (Hu et al. 2024, arXiv:2404.06395); or the full rate for ever. Pure.
double learning_rate(const Optimizer& optimizer, int64_t step);

}  // namespace slipstream
