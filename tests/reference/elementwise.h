// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rounding to float and bfloat16, sums and sums of squares in double, from the formats' definitions.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace slipstream::reference {

constexpr int kFloatBits = 24, kBfloat16Bits = 8;  // significant bits; the two formats have the same exponents

/// The nearest number with this many significant bits; if two are equally near, the one whose last bit is zero.
inline double rounded(double x, int significant_bits) {
  if (!std::isfinite(x) || x == 0) return x;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), -126) + 1 - significant_bits);
  const double y = std::nearbyint(x / unit) * unit;
  return std::abs(y) < 0x1p128 ? y : std::copysign(INFINITY, y);
}

/// The value of the bits of a bfloat16: a sign, eight bits of exponent, seven of fraction.
inline double bfloat16_value(uint16_t bits) {
  const int exponent = bits >> 7 & 0xff, fraction = bits & 0x7f;
  const double size = exponent == 255 ? (fraction == 0 ? INFINITY : NAN)
                      : exponent == 0 ? std::ldexp(fraction, -126 - 7)
                                      : std::ldexp(128 + fraction, exponent - 127 - 7);
  return std::copysign(size, bits >> 15 ? -1.0 : 1.0);
}

/// Rounds each element once.
inline std::vector<double> sum(const std::vector<double>& a, const std::vector<double>& b, int significant_bits) {
  std::vector<double> result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back(rounded(a[i] + b[i], significant_bits));
  return result;
}

/// Adds in extended precision: in double, the sum of millions of squares would be no more accurate than a kernel's.
template <typename Range>
double sum_squares(const Range& x) {
  long double total = 0.0L;
  for (auto value : x) total += static_cast<long double>(value) * static_cast<long double>(value);
  return static_cast<double>(total);
}

}  // namespace slipstream::reference
