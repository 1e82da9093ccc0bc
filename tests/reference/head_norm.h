// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms of heads in packed rows of queries, keys and values, in double: the reference of RMS norm, head by head.

#include <algorithm>

#include "tests/reference/norms.h"

namespace slipstream::reference {

struct HeadNormShape {
  int64_t rows, heads, kv_heads, head_dim;

  int64_t normed() const { return heads + kv_heads; }
  int64_t width() const { return (normed() + kv_heads) * head_dim; }
  int64_t elems() const { return rows * width(); }
};

struct HeadNormResult {
  Doubles y, inv_rms;               // of the forward pass
  Doubles d, dq_weight, dk_weight;  // of the backward pass; `terms`: inv_rms * dy * weight, as large as those of d
  Doubles terms;
};

inline HeadNormResult head_norm(const HeadNormShape& s, const Doubles& x, const Doubles& dy, const Doubles& q_weight,
                                const Doubles& k_weight, double eps) {
  const auto size = static_cast<size_t>(s.head_dim);
  HeadNormResult result{x, {}, dy, Doubles(size), Doubles(size), {}};
  for (int64_t row = 0; row < s.rows; ++row)
    for (int64_t head = 0; head < s.normed(); ++head) {
      const Doubles& weight = head < s.heads ? q_weight : k_weight;
      const auto at = static_cast<std::ptrdiff_t>(row * s.width() + head * s.head_dim);
      const Doubles one(x.begin() + at, x.begin() + at + s.head_dim), d(dy.begin() + at, dy.begin() + at + s.head_dim);
      const NormResult forward = norm(one, weight, {}, eps, false);
      const NormGradients backward = norm_gradients(d, one, weight, eps, false);
      std::copy(forward.y.begin(), forward.y.end(), result.y.begin() + at);
      std::copy(backward.dx.begin(), backward.dx.end(), result.d.begin() + at);
      result.inv_rms.push_back(forward.inv.front());
      for (size_t i = 0; i < size; ++i) {
        (head < s.heads ? result.dq_weight : result.dk_weight)[i] += backward.dweight[i];
        result.terms.push_back(forward.inv.front() * d[i] * weight[i]);
      }
    }
  return result;
}

}  // namespace slipstream::reference
