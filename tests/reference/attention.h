// SPDX-License-Identifier: Apache-2.0
#pragma once
// Causal attention and its gradients in double, with the whole matrix of weights.

#include <Eigen/Dense>
#include <cmath>
#include <cstdint>
#include <vector>

namespace slipstream::reference {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct AttentionResult {
  Matrix out;           // [tokens, head_dim]
  Eigen::VectorXd lse;  // [tokens]
  Matrix weights;       // [tokens, tokens]
};
struct AttentionGradients {
  Matrix dq, dk, dv;
};

/// Attention of one head: q, k, v [tokens, head_dim]. With a window, token t sees the `window` last tokens, itself
/// included.
inline AttentionResult attention(const Matrix& q, const Matrix& k, const Matrix& v, double scale, int64_t window = 0) {
  const Eigen::Index tokens = q.rows();
  AttentionResult result{Matrix::Zero(tokens, q.cols()), Eigen::VectorXd::Zero(tokens), Matrix::Zero(tokens, tokens)};
  for (Eigen::Index t = 0; t < tokens; ++t) {
    Eigen::VectorXd scores(t + 1);
    for (Eigen::Index s = 0; s <= t; ++s)
      scores[s] = window > 0 && s <= t - window ? -INFINITY : scale * q.row(t).dot(k.row(s));
    const double highest = scores.maxCoeff();
    result.lse[t] = highest + std::log((scores.array() - highest).exp().sum());
    for (Eigen::Index s = 0; s <= t; ++s) result.weights(t, s) = std::exp(scores[s] - result.lse[t]);
    result.out.row(t) = result.weights.row(t) * v;
  }
  return result;
}

/// Gradients of sum(dout * out).
inline AttentionGradients attention_gradients(const Matrix& dout, const Matrix& q, const Matrix& k, const Matrix& v,
                                              double scale, int64_t window = 0) {
  const Matrix weights = attention(q, k, v, scale, window).weights;
  const Matrix dweights = dout * v.transpose();
  Matrix dscores = weights.cwiseProduct(dweights);
  const Eigen::VectorXd row_sums = dscores.rowwise().sum();
  dscores -= row_sums.asDiagonal() * weights;
  return {scale * dscores * k, scale * dscores.transpose() * q, weights.transpose() * dout};
}

}  // namespace slipstream::reference
