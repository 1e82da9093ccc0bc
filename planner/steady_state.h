// SPDX-License-Identifier: Apache-2.0
#pragma once
// The numbers of micro-batches whose plans give the step of many.

#include <cstdint>

#include "engine/config/resolve.h"

namespace slipstream::planner {

/// Few micro-batches of a run whose step is a line beyond them: T(planned) + rounds x (T(planned + round) -
/// T(planned)).
struct SteadyState {
  int64_t planned = 0;
  int64_t round = 0;
  double rounds = 0;  // 0: too few micro-batches
};
/// Pure.
SteadyState steady_state(const ResolvedConfig& config);
/// The same run with another number of micro-batches in a step. Pure.
ResolvedConfig with_micro_batches(const ResolvedConfig& config, int64_t micro_batches);

}  // namespace slipstream::planner
