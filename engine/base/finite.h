// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tests values for NaN and infinity.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace slipstream {

/// Is every value a number, neither NaN nor infinite? Compares the bits, because -ffast-math may assume that it is.
/// Pure.
inline bool all_finite(std::span<const float> values) {
  constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
  uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & kMagnitude);
  return largest < kInfinity;
}

}  // namespace slipstream
