// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention of all heads of a batch in double, with a window, documents and dropout of its weights, pair by pair.

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/reference/dropout.h"
#include "tests/reference/packed_attention.h"

namespace slipstream::reference {

struct Masks {
  int64_t window = 0;           // 0: no window
  std::vector<int32_t> begins;  // [batch, tokens]: the begins of the documents; empty: no documents
  double rate = 0;              // the rate of dropout
  uint64_t key = 0;             // the key of the first head
  uint32_t step = 0;
  std::vector<uint32_t> sequences;  // [batch]: the numbers of the sequences; used with dropout
};

/// Documents of at most `longest` tokens; 0: no documents.
inline Masks masks_of(const AttentionShape& s, int64_t window, int64_t longest, double rate) {
  Masks masks{.window = window, .begins = {}, .rate = rate, .key = 0x5eed, .step = 6, .sequences = {}};
  if (longest > 0) masks.begins = document_begins(s, longest);
  for (int64_t b = 0; b < s.batch; ++b) masks.sequences.push_back(static_cast<uint32_t>(17 + b));
  return masks;
}

/// The begins of one rank's tokens.
inline std::vector<int32_t> begins_of_rank(const Masks& masks, int64_t batch, const Share& share) {
  const Doubles whole(masks.begins.begin(), masks.begins.end());
  std::vector<int32_t> mine;
  if (!whole.empty())
    for (double begin : rows_of_rank(whole, batch, share, 1)) mine.push_back(static_cast<int32_t>(begin));
  return mine;
}

/// out and lse, and the gradients of sum(dout * out).
inline PackedAttention masked_attention(const AttentionShape& s, const Doubles& qkv, const Doubles& dout, double scale,
                                        const Masks& masks) {
  const int64_t width = s.width(), out_width = s.out_width(), T = s.tokens;
  PackedAttention e{Doubles(dout.size()), Doubles(static_cast<size_t>(s.batch * s.heads * T)), Doubles(qkv.size())};
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t at_q = h * s.head_dim, at_k = (s.heads + h / (s.heads / s.kv_heads)) * s.head_dim,
                    at_v = at_k + s.kv_heads * s.head_dim;
      const auto part = [&](int64_t at) { return head_of(qkv, width, b * T, T, at, s.head_dim); };
      const Matrix q = part(at_q), k = part(at_k), v = part(at_v),
                   d = head_of(dout, out_width, b * T, T, at_q, s.head_dim);
      Matrix weights = Matrix::Zero(T, T), factors = Matrix::Ones(T, T);
      for (int64_t t = 0; t < T; ++t) {
        double sum = 0;
        for (int64_t u = 0; u <= t; ++u) {
          if (masks.window > 0 && t - u >= masks.window) continue;
          if (!masks.begins.empty() && u < masks.begins[static_cast<size_t>(b * T + t)]) continue;
          sum += weights(t, u) = std::exp(scale * q.row(t).dot(k.row(u)));
          if (masks.rate > 0)
            factors(t, u) =
                is_kept({masks.key + static_cast<uint64_t>(h), masks.step, masks.sequences[static_cast<size_t>(b)],
                         static_cast<uint32_t>(t), static_cast<uint32_t>(u)},
                        masks.rate)
                    ? 1 / (1 - masks.rate)
                    : 0;
        }
        weights.row(t) /= sum;
        e.lse[static_cast<size_t>((b * s.heads + h) * T + t)] = std::log(sum);
      }
      const Matrix dropped = weights.cwiseProduct(factors);
      Matrix dscores = dropped.cwiseProduct(d * v.transpose());
      const Eigen::VectorXd sums = dscores.rowwise().sum();
      dscores -= sums.asDiagonal() * weights;
      add_head(e.out, dropped * v, out_width, b * T, at_q);
      add_head(e.dqkv, scale * dscores * k, width, b * T, at_q);
      add_head(e.dqkv, scale * dscores.transpose() * q, width, b * T, at_k);
      add_head(e.dqkv, dropped.transpose() * d, width, b * T, at_v);
    }
  return e;
}

}  // namespace slipstream::reference
