// SPDX-License-Identifier: Apache-2.0
#pragma once
// The optimizers that a run file names, and the numbers of their rules that it sets.

#include <cstdint>

#include "engine/base/modes.h"

namespace slipstream {

/// optimizer.name, in the order of optimizers() (engine/plan/optimizer.h).
enum class OptimizerName : uint8_t { adamw };
template <>
inline constexpr std::array<const char*, 1> kWords<OptimizerName>{"adamw"};

/// Does the optimizer update whole matrices, so that no rank may hold a part of one? Pure.
constexpr bool updates_matrices(OptimizerName) { return false; }

/// Read by update rules.
struct UpdateOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double grad_clip = 1.0;  // largest norm of all gradients; 0: no clipping
};

}  // namespace slipstream
