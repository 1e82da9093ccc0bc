// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention of all heads of a batch in double, of rows packed as [q heads | k heads | v heads].

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/reference/attention.h"

namespace slipstream::reference {

using Doubles = std::vector<double>;

struct AttentionShape {
  int64_t batch, tokens, heads, kv_heads, head_dim;

  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t out_width() const { return heads * head_dim; }
};

struct PackedAttention {
  Doubles out, lse, dqkv;  // rows of tokens; lse [batch, heads, tokens]
};

inline Matrix head_of(const Doubles& rows, int64_t stride, int64_t first_row, int64_t tokens, int64_t offset,
                      int64_t head_dim) {
  Matrix m(tokens, head_dim);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t e = 0; e < head_dim; ++e) m(t, e) = rows[static_cast<size_t>((first_row + t) * stride + offset + e)];
  return m;
}
inline void add_head(Doubles& rows, const Matrix& m, int64_t stride, int64_t first_row, int64_t offset) {
  for (Eigen::Index t = 0; t < m.rows(); ++t)
    for (Eigen::Index e = 0; e < m.cols(); ++e)
      rows[static_cast<size_t>((first_row + t) * stride + offset + e)] += m(t, e);
}

/// out and lse, and the gradients of sum(dout * out).
inline PackedAttention packed_attention(const AttentionShape& s, const Doubles& qkv, const Doubles& dout, double scale,
                                        int64_t window = 0) {
  const int64_t width = s.width(), out_width = s.out_width();
  PackedAttention e{Doubles(dout.size()), Doubles(static_cast<size_t>(s.batch * s.heads * s.tokens)),
                    Doubles(qkv.size())};
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t row = b * s.tokens, at_q = h * s.head_dim;
      const int64_t at_k = (s.heads + h / (s.heads / s.kv_heads)) * s.head_dim, at_v = at_k + s.kv_heads * s.head_dim;
      const Matrix q = head_of(qkv, width, row, s.tokens, at_q, s.head_dim),
                   k = head_of(qkv, width, row, s.tokens, at_k, s.head_dim);
      const Matrix v = head_of(qkv, width, row, s.tokens, at_v, s.head_dim);
      const auto forward = attention(q, k, v, scale, window);
      add_head(e.out, forward.out, out_width, row, at_q);
      for (int64_t t = 0; t < s.tokens; ++t)
        e.lse[static_cast<size_t>((b * s.heads + h) * s.tokens + t)] = forward.lse[t];
      const auto gradients =
          attention_gradients(head_of(dout, out_width, row, s.tokens, at_q, s.head_dim), q, k, v, scale, window);
      add_head(e.dqkv, gradients.dq, width, row, at_q);
      add_head(e.dqkv, gradients.dk, width, row, at_k);
      add_head(e.dqkv, gradients.dv, width, row, at_v);
    }
  return e;
}

/// Does the same, one document after another: each has attention of its own. `begins` is as document_begins of
/// attention.
inline PackedAttention packed_documents(const AttentionShape& s, const Doubles& qkv, const Doubles& dout, double scale,
                                        int64_t window, const std::vector<int32_t>& begins) {
  PackedAttention all{{}, Doubles(static_cast<size_t>(s.batch * s.heads * s.tokens)), {}};
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t begin = 0, end = 0; begin < s.tokens; begin = end) {
      while (end < s.tokens && begins[static_cast<size_t>(b * s.tokens + end)] == begin) ++end;
      const auto rows = [&](const Doubles& whole, int64_t width) {
        return Doubles(whole.begin() + (b * s.tokens + begin) * width, whole.begin() + (b * s.tokens + end) * width);
      };
      const AttentionShape one{1, end - begin, s.heads, s.kv_heads, s.head_dim};
      const PackedAttention e = packed_attention(one, rows(qkv, s.width()), rows(dout, s.out_width()), scale, window);
      all.out.insert(all.out.end(), e.out.begin(), e.out.end());
      all.dqkv.insert(all.dqkv.end(), e.dqkv.begin(), e.dqkv.end());
      for (int64_t h = 0; h < s.heads; ++h)
        for (int64_t t = begin; t < end; ++t)
          all.lse[static_cast<size_t>((b * s.heads + h) * s.tokens + t)] =
              e.lse[static_cast<size_t>(h * (end - begin) + t - begin)];
    }
  return all;
}

/// Documents of 1 to `longest` tokens, other ones in every sequence.
inline std::vector<int32_t> document_begins(const AttentionShape& s, int64_t longest) {
  std::vector<int32_t> begins;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t begin = 0, next = 0; begin < s.tokens; begin = next) {
      next = std::min(s.tokens, begin + 1 + (begin * 7 + b * 3 + longest - 1) % longest);
      begins.insert(begins.end(), static_cast<size_t>(next - begin), static_cast<int32_t>(begin));
    }
  return begins;
}

struct Share {
  int64_t tokens;  // of a whole sequence, which is cut into 2 x ranks equal chunks
  int ranks, rank;
};

/// One rank's part of rows of whole sequences: the chunk with its number from the front and the one with its number
/// from the back, in the order of the sequence.
inline Doubles rows_of_rank(const Doubles& whole, int64_t batch, const Share& share, int64_t width) {
  Doubles mine;
  for (int64_t row = 0; row < batch * share.tokens; ++row) {
    const int64_t chunk = row % share.tokens * 2 * share.ranks / share.tokens;
    if (chunk != share.rank && chunk != 2 * share.ranks - 1 - share.rank) continue;
    mine.insert(mine.end(), whole.begin() + row * width, whole.begin() + (row + 1) * width);
  }
  return mine;
}

inline Doubles columns(const Doubles& rows, int64_t stride, int64_t begin, int64_t end) {
  Doubles part;
  for (size_t i = 0; i < rows.size(); ++i)
    if (const int64_t c = static_cast<int64_t>(i) % stride; c >= begin && c < end) part.push_back(rows[i]);
  return part;
}

}  // namespace slipstream::reference
