// SPDX-License-Identifier: Apache-2.0
#pragma once
// A mixture of experts in double: scores, choices by sorting, weights, losses of a router, and a dense loop over
// experts.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace slipstream::reference {

using Doubles = std::vector<double>;

/// The router of one token. E is the number of elements of its logits.
struct Router {
  bool sigmoid = false, normalize = true;
  double scale = 1;
  int64_t groups = 1, group_top_k = 1, top_k = 1;
};

inline Doubles router_scores(const Router& router, Doubles logits) {
  if (router.sigmoid) {
    for (double& x : logits) x = 1 / (1 + std::exp(-x));
    return logits;
  }
  const double top = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (double& x : logits) total += x = std::exp(x - top);
  for (double& x : logits) x /= total;
  return logits;
}

/// The indices of values in falling order. If values are equal, the lower index is first.
inline std::vector<int32_t> falling_order(const Doubles& values) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  return order;
}

/// The choices of a token by its preferences, which are scores with biases.
inline std::vector<int32_t> router_choices(const Router& router, const Doubles& preferences) {
  const size_t size = preferences.size() / static_cast<size_t>(router.groups);
  Doubles of_groups;
  for (auto at = preferences.begin(); at != preferences.end(); at += static_cast<std::ptrdiff_t>(size)) {
    Doubles group(at, at + static_cast<std::ptrdiff_t>(size));
    std::sort(group.rbegin(), group.rend());
    // The sum is one of floats, as the op forms it: sums that are equal in float are ties.
    of_groups.push_back(size == 1 ? group[0]
                                  : static_cast<double>(static_cast<float>(group[0]) + static_cast<float>(group[1])));
  }
  std::vector<int32_t> groups = falling_order(of_groups), chosen;
  groups.resize(static_cast<size_t>(router.group_top_k));
  for (const int32_t expert : falling_order(preferences))
    if (std::count(groups.begin(), groups.end(), expert / static_cast<int32_t>(size)) > 0) chosen.push_back(expert);
  chosen.resize(static_cast<size_t>(router.top_k));
  return chosen;
}

inline Doubles router_weights(const Router& router, const Doubles& scores, const std::vector<int32_t>& chosen) {
  Doubles weights;
  for (const int32_t expert : chosen) weights.push_back(scores[static_cast<size_t>(expert)]);
  const double total = std::accumulate(weights.begin(), weights.end(), 1e-20);
  for (double& weight : weights) weight *= router.scale / (router.normalize ? total : 1);
  return weights;
}

/// The loss of one token whose gradient a router's backward pass computes. `load` are the choices of the token's
/// sequence, of `sequence` tokens.
struct RouterLosses {
  double auxiliary = 0, z_loss = 0;
  int64_t sequence = 1;
};
inline double router_loss(const Router& router, const Doubles& logits, const std::vector<int32_t>& chosen,
                          const Doubles& dweights, const std::vector<int32_t>& load, const RouterLosses& losses) {
  const Doubles scores = router_scores(router, logits), weights = router_weights(router, scores, chosen);
  double loss = std::inner_product(weights.begin(), weights.end(), dweights.begin(), 0.0);
  const double total = router.sigmoid ? std::accumulate(scores.begin(), scores.end(), 0.0) : 1;
  double balance = 0, sum = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    balance += load[e] / static_cast<double>(router.top_k * losses.sequence) * scores[e] / total;
    sum += std::exp(logits[e]);
  }
  loss += losses.auxiliary * static_cast<double>(logits.size()) * balance;
  return loss + losses.z_loss * std::log(sum) * std::log(sum);
}

/// The numbers of the choices in the order of (expert, number), for `experts` experts from `first` on; other choices
/// are left out.
struct Arrangement {
  std::vector<int32_t> offsets, rows, places;
};
inline Arrangement arrangement(const std::vector<int32_t>& chosen, int64_t experts, int64_t first = 0) {
  Arrangement a{{}, {}, std::vector<int32_t>(chosen.size(), -1)};
  for (int32_t e = 0; e < experts; ++e) {
    a.offsets.push_back(static_cast<int32_t>(a.rows.size()));
    for (size_t i = 0; i < chosen.size(); ++i)
      if (chosen[i] == first + e) {
        a.places[i] = static_cast<int32_t>(a.rows.size());
        a.rows.push_back(static_cast<int32_t>(i));
      }
  }
  a.offsets.push_back(static_cast<int32_t>(a.rows.size()));
  return a;
}

/// c[m, n] = sum over k of a[m, k] b[k, n], with the strides between m, k and k, n of the operands.
struct Strided {
  const double* at;
  int64_t row, column;
};
inline Doubles product(const Strided& a, const Strided& b, int64_t m, int64_t n, int64_t k) {
  Doubles c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l)
        c[static_cast<size_t>(i * n + j)] += a.at[i * a.row + l * a.column] * b.at[l * b.row + j * b.column];
  return c;
}

}  // namespace slipstream::reference
