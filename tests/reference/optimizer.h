// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW and Muon in double, written from the papers; the bias corrections are computed here.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace slipstream::reference {

struct AdamwState {
  double p = 0.0, m = 0.0, v = 0.0;
};

struct AdamwRule {
  double learning_rate, beta1, beta2, eps, weight_decay;
};

/// Step `t`, counted from 1, with gradient `g`.
inline AdamwState adamw_step(const AdamwState& s, double g, const AdamwRule& r, int t) {
  AdamwState n;
  n.m = r.beta1 * s.m + (1.0 - r.beta1) * g;
  n.v = r.beta2 * s.v + (1.0 - r.beta2) * g * g;
  const double m_hat = n.m / (1.0 - std::pow(r.beta1, t)), v_hat = n.v / (1.0 - std::pow(r.beta2, t));
  n.p = s.p - r.learning_rate * (m_hat / (std::sqrt(v_hat) + r.eps) + r.weight_decay * s.p);
  return n;
}

struct MuonState {
  std::vector<double> p, m;
};

struct MuonRule {
  double learning_rate, weight_decay, momentum;
  bool nesterov;
  int newton_schulz_steps;
  double eps, scale;  // of the learning rate
};

/// a b for a [m, k] and b [k, n].
inline std::vector<double> matrix_product(const std::vector<double>& a, const std::vector<double>& b, size_t m,
                                          size_t k, size_t n) {
  std::vector<double> c(m * n, 0.0);
  for (size_t i = 0; i < m; ++i)
    for (size_t l = 0; l < k; ++l)
      for (size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
  return c;
}

/// The Newton-Schulz steps of Jordan et al. on u [rows, cols], always from the left.
inline std::vector<double> orthogonalized(std::vector<double> x, size_t rows, size_t cols, int steps, double eps) {
  double sum = 0.0;
  for (double element : x) sum += element * element;
  for (double& element : x) element /= std::max(std::sqrt(sum), eps);
  for (int step = 0; step < steps; ++step) {
    std::vector<double> transposed(x.size());
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < cols; ++j) transposed[j * rows + i] = x[i * cols + j];
    const auto cubic = matrix_product(matrix_product(x, transposed, rows, cols, rows), x, rows, rows, cols);
    const auto quintic = matrix_product(matrix_product(x, transposed, rows, cols, rows), cubic, rows, rows, cols);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] - 4.7750 * cubic[i] + 2.0315 * quintic[i];
  }
  return x;
}

/// One step with gradient `g` [rows, cols].
inline MuonState muon_step(MuonState s, const std::vector<double>& g, size_t rows, size_t cols, const MuonRule& r) {
  std::vector<double> u(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    s.m[i] = r.momentum * s.m[i] + (1.0 - r.momentum) * g[i];
    u[i] = r.nesterov ? r.momentum * s.m[i] + (1.0 - r.momentum) * g[i] : s.m[i];
  }
  const auto x = orthogonalized(std::move(u), rows, cols, r.newton_schulz_steps, r.eps);
  for (size_t i = 0; i < g.size(); ++i)
    s.p[i] -= r.learning_rate * r.weight_decay * s.p[i] + r.learning_rate * r.scale * x[i];
  return s;
}

}  // namespace slipstream::reference
