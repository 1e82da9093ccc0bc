// SPDX-License-Identifier: Apache-2.0
#pragma once
// The numbers from which the masks of dropout are computed. They identify a sequence, a place in the model and a rate.

#include <cstdint>
#include <string_view>

namespace slipstream::kernels {

/// The step and the number of a sequence in the step's global batch: equal on every layout.
struct DropoutSample {
  uint32_t step = 0;
  uint32_t sequence = 0;
};

/// Pure. The key of a place in the model. The masks of different names are independent.
uint64_t dropout_key(uint64_t seed, std::string_view name);

/// Pure. The smallest word that keeps an element: rate x 2^32, rounded.
uint32_t dropout_threshold(double rate);
/// Pure. 1 / (1 - rate).
float dropout_scale(double rate);

}  // namespace slipstream::kernels
