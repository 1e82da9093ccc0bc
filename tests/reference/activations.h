// SPDX-License-Identifier: Apache-2.0
#pragma once
// GELU, SwiGLU, the rotary embedding and their derivatives in double, written from the formulas.

#include <cmath>
#include <cstdint>
#include <vector>

namespace slipstream::reference {

inline double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
inline double gelu_derivative(double x) {
  const double root = std::sqrt(2 / M_PI);
  const double t = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

inline double silu(double x) { return x / (1 + std::exp(-x)); }
inline double silu_derivative(double x) {
  const double e = std::exp(-x);
  return 1 / (1 + e) + x * e / ((1 + e) * (1 + e));
}

/// Rotates one head of one token, in place.
inline void rotate(std::vector<double>& head, int64_t position, double theta, bool inverse) {
  const size_t half = head.size() / 2;
  for (size_t j = 0; j < half; ++j) {
    const double angle = (inverse ? -1.0 : 1.0) * static_cast<double>(position) *
                         std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(head.size()));
    const double a = head[j], b = head[j + half];
    head[j] = a * std::cos(angle) - b * std::sin(angle);
    head[j + half] = a * std::sin(angle) + b * std::cos(angle);
  }
}

}  // namespace slipstream::reference
