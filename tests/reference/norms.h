// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layer norm, RMS norm and their gradients in double, written from the formulas.

#include <cmath>
#include <cstdint>
#include <vector>

namespace slipstream::reference {

using Doubles = std::vector<double>;

struct NormResult {
  Doubles y, mean, inv;
};
struct NormGradients {
  Doubles dx, dweight, dbias;
};

/// Normalizes rows of width weight.size(): with `centre` by a layer norm, without it by an RMS norm, which does not use
/// `bias`.
inline NormResult norm(const Doubles& x, const Doubles& weight, const Doubles& bias, double eps, bool centre) {
  const size_t width = weight.size(), rows = x.size() / width;
  NormResult result{Doubles(x.size()), Doubles(rows), Doubles(rows)};
  for (size_t r = 0; r < rows; ++r) {
    double mean = 0, square = 0;
    if (centre)
      for (size_t i = 0; i < width; ++i) mean += x[r * width + i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) square += std::pow(x[r * width + i] - mean, 2) / static_cast<double>(width);
    result.mean[r] = mean;
    result.inv[r] = 1 / std::sqrt(square + eps);
    for (size_t i = 0; i < width; ++i)
      result.y[r * width + i] = (x[r * width + i] - mean) * result.inv[r] * weight[i] + (centre ? bias[i] : 0);
  }
  return result;
}

/// Gradients of sum(dy * y). dx has no residual.
inline NormGradients norm_gradients(const Doubles& dy, const Doubles& x, const Doubles& weight, double eps,
                                    bool centre) {
  const size_t width = weight.size(), rows = x.size() / width;
  const NormResult forward = norm(x, weight, Doubles(width), eps, centre);
  NormGradients result{Doubles(x.size()), Doubles(width), Doubles(width)};
  for (size_t r = 0; r < rows; ++r) {
    // The Jacobian of n_i = (x_i - mean) * inv is inv * (delta_ij - [centre] / width - n_i n_j / width).
    Doubles n(width);
    for (size_t i = 0; i < width; ++i) n[i] = (x[r * width + i] - forward.mean[r]) * forward.inv[r];
    double sum_g = 0, sum_gn = 0;
    for (size_t i = 0; i < width; ++i) {
      const double d = dy[r * width + i];
      result.dweight[i] += d * n[i];
      result.dbias[i] += d;
      sum_g += d * weight[i];
      sum_gn += d * weight[i] * n[i];
    }
    for (size_t j = 0; j < width; ++j)
      result.dx[r * width + j] =
          forward.inv[r] * (dy[r * width + j] * weight[j] - (centre ? sum_g : 0) / static_cast<double>(width) -
                            n[j] * sum_gn / static_cast<double>(width));
  }
  return result;
}

}  // namespace slipstream::reference
