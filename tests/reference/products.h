// SPDX-License-Identifier: Apache-2.0
#pragma once
// A linear layer with GELU in double, from the formulas on the op card.

#include <Eigen/Core>
#include <cmath>

namespace slipstream::reference {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::Matrix<double, 1, Eigen::Dynamic>;

inline Matrix linear(const Matrix& x, const Matrix& weight, const Vector& bias) {
  return (x * weight.transpose()).rowwise() + bias;
}

inline Matrix tanh_gelu(const Matrix& v) {
  return v.unaryExpr([](double a) {
    return 0.5 * a * (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (a + 0.044715 * a * a * a)));
  });
}

inline Matrix tanh_gelu_slope(const Matrix& v) {
  return v.unaryExpr([](double a) {
    const double root = std::sqrt(2.0 / 3.14159265358979323846), t = std::tanh(root * (a + 0.044715 * a * a * a));
    return 0.5 * (1.0 + t) + 0.5 * a * (1.0 - t * t) * root * (1.0 + 3.0 * 0.044715 * a * a);
  });
}

inline Matrix linear_dx(const Matrix& dy, const Matrix& weight) { return dy * weight; }
inline Matrix linear_dweight(const Matrix& x, const Matrix& dy) { return dy.transpose() * x; }
inline Vector linear_dbias(const Matrix& dy) { return dy.colwise().sum(); }

}  // namespace slipstream::reference
