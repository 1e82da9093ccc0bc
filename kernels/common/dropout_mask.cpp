// SPDX-License-Identifier: Apache-2.0
// Keys, thresholds and factors of dropout.

#include "kernels/common/dropout_mask.h"

#include <algorithm>
#include <cmath>

#include "engine/base/philox.h"

namespace slipstream::kernels {

uint64_t dropout_key(uint64_t seed, std::string_view name) { return Philox(seed, name).bits(0); }

uint32_t dropout_threshold(double rate) {
  return static_cast<uint32_t>(std::min(std::nearbyint(rate * 0x1p32), 0x1p32 - 1));
}

float dropout_scale(double rate) { return static_cast<float>(1 / (1 - rate)); }

}  // namespace slipstream::kernels
