// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW in double, written from the paper with the bias corrections computed here.

#include <cmath>

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

}  // namespace slipstream::reference
