// SPDX-License-Identifier: Apache-2.0
#pragma once
// Philox4x32-10 from the algorithm of the paper, and dropout in double with its masks, element by element.

#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/reference/elementwise.h"

namespace slipstream::reference {

/// A round multiplies two words, and the halves of the products change places with the others (Salmon et al. 2011,
/// section 3.3, in the order of their implementation Random123).
inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> x, std::array<uint32_t, 2> key) {
  const auto product = [](uint64_t a, uint64_t b) {
    return std::pair{static_cast<uint32_t>(a * b >> 32), static_cast<uint32_t>(a * b)};
  };
  for (uint32_t round = 0; round < 10; ++round) {
    const auto [high0, low0] = product(0xD2511F53, x[0]);
    const auto [high1, low1] = product(0xCD9E8D57, x[2]);
    x = {high1 ^ x[1] ^ (key[0] + round * 0x9E3779B9), low1, high0 ^ x[3] ^ (key[1] + round * 0xBB67AE85), low0};
  }
  return x;
}

/// The place of an element. All numbers are those of the whole batch and the whole sequence.
struct Place {
  uint64_t key = 0;
  uint32_t step = 0, sequence = 0, position = 0, feature = 0;
};

inline bool is_kept(const Place& at, double rate) {
  const std::array<uint32_t, 4> words = philox({at.feature / 4, at.position, at.sequence, at.step},
                                               {static_cast<uint32_t>(at.key), static_cast<uint32_t>(at.key >> 32)});
  return static_cast<double>(words[at.feature % 4]) >= std::nearbyint(rate * 4294967296.0);
}

/// x + m d / (1 - rate): the product and the sum are rounded to float, then to the type.
inline double dropout(const Place& at, double rate, double x, double d, int significant_bits) {
  const double scale = rounded(1 / (1 - rate), kFloatBits);
  const double dropped = is_kept(at, rate) ? rounded(d * scale, kFloatBits) : 0.0;
  return rounded(rounded(x + dropped, kFloatBits), significant_bits);
}

}  // namespace slipstream::reference
