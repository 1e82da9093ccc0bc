// SPDX-License-Identifier: Apache-2.0
#pragma once
// Products of few rows and attention of one token, in double.

#include <algorithm>
#include <cmath>

#include "tests/kernels/common/op_test.h"

namespace slipstream::reference {

using test::Doubles;

/// y[rows, out] = x weight^T + bias; an empty bias adds nothing.
inline Doubles few_rows_product(const Doubles& x, const Doubles& weight, const Doubles& bias, int64_t rows, int64_t in,
                                int64_t out) {
  Doubles y(static_cast<size_t>(rows * out));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(o)];
      for (int64_t i = 0; i < in; ++i)
        sum += x[static_cast<size_t>(r * in + i)] * weight[static_cast<size_t>(o * in + i)];
      y[static_cast<size_t>(r * out + o)] = sum;
    }
  return y;
}

/// One sequence of a batch: its new token attends to `keys` tokens up to `token`.
struct DecodedSequence {
  int64_t token, keys;
};

/// Random operands of one new token of each sequence, and what attention gives with keys and values that were rounded
/// to `dtype`.
struct DecodedTokens {
  DecodedTokens(const std::vector<DecodedSequence>& sequences, int64_t heads, int64_t kv_heads, int64_t head_dim,
                double spread, DType dtype = DType::f32)
      : kv_width(kv_heads * head_dim),
        width(heads * head_dim + 2 * kv_width),
        scale(1.0f / std::sqrt(static_cast<float>(head_dim))) {
    const auto seed = static_cast<uint32_t>(sequences.front().keys * 1000 + head_dim);
    qkv = test::random_doubles(std::ssize(sequences) * width, DType::f32, seed, spread);
    for (size_t r = 0; r < sequences.size(); ++r) {
      const auto [token, keys] = sequences[r];
      const double* const row = qkv.data() + static_cast<int64_t>(r) * width;
      Doubles all =
          test::random_doubles((token + 1) * 2 * kv_width, DType::f32, seed + 1 + static_cast<uint32_t>(r), spread);
      std::copy_n(row + heads * head_dim, 2 * kv_width, all.begin() + token * 2 * kv_width);
      const Doubles rounded = test::Tensor(all, dtype).doubles();
      for (int64_t h = 0; h < heads; ++h)
        add(row + h * head_dim, rounded.data() + (token + 1 - keys) * 2 * kv_width + h * kv_heads / heads * head_dim,
            keys, head_dim);
      kv.push_back(std::move(all));
    }
  }

  int64_t kv_width, width;
  float scale;
  Doubles qkv;
  std::vector<Doubles> kv;  // of each sequence: rows of k and v side by side as in qkv; the last row is the new token's
  Doubles out;

 private:
  /// Attention of one head: k[0] is that of the first visible token; its v follows kv_width later.
  void add(const double* q, const double* k, int64_t keys, int64_t head_dim) {
    Doubles scores(static_cast<size_t>(keys)), of_head(static_cast<size_t>(head_dim));
    for (int64_t s = 0; s < keys; ++s)
      for (int64_t e = 0; e < head_dim; ++e)
        scores[static_cast<size_t>(s)] += static_cast<double>(scale) * q[e] * k[s * 2 * kv_width + e];
    const double highest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - highest);
    for (int64_t s = 0; s < keys; ++s)
      for (int64_t e = 0; e < head_dim; ++e)
        of_head[static_cast<size_t>(e)] += scores[static_cast<size_t>(s)] / sum * k[s * 2 * kv_width + kv_width + e];
    out.insert(out.end(), of_head.begin(), of_head.end());
  }
};

}  // namespace slipstream::reference
