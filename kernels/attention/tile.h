// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of attention that work on registers: products of tiles, transposes, packing and log.
//
// Only the *_cpu.cpp files of attention include it. Scores are kept transposed, with keys down and queries across the
// lanes, so that the maxima, sums, masks and exponentials of the softmax need no operations across lanes.

#include <utility>

#include "engine/base/context_chunks.h"
#include "kernels/attention/attention.h"
#include "kernels/common/simd.h"

namespace slipstream::kernels::SLIP_ISA {

constexpr int kBlock = 64;  // the queries, and the keys, of a block: its scores are 16 KiB, half of a usual L1
constexpr int kTileRows = 6;
constexpr int kTileCols = 2 * kLanes;
constexpr int kHeadDimMax = 256;  // kAttentionHeadDimMax

inline int64_t padded(int64_t head_dim) { return (head_dim + kTileCols - 1) / kTileCols * kTileCols; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/// The left side of a product: element (i, k) is at data[i * row + k * kColumn]. The column step is a template
/// argument, because otherwise GCC makes two loops and moves all accumulators between them.
template <int kColumn>
struct Left {
  const float* data;
  int64_t row;
};
using Rows = Left<1>;                   // as in memory
using ScoresTransposed = Left<kBlock>;  // a transposed block of scores; its rows are 1 apart

/// c[kRows x kTileCols] = (kAdd ? c : 0) + a[kRows x count] * b[count x kTileCols]. 12 accumulators, 2 rows of b and
/// one broadcast fit into the 16 registers of AVX2, and 12 chains cover 2 units of latency 4. The function is not
/// inlined, because inside a larger loop GCC 12 keeps half of the accumulators on the stack.
template <int kRows, bool kAdd, int kColumn>
[[gnu::noinline]] void tile_of(Left<kColumn> a, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                               int64_t count) {
  Vf sums[kRows][2];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) sums[i][j] = kAdd ? load(c + i * c_stride + j * kLanes) : Vf{};
  const float* left[kRows];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) left[i] = a.data + i * a.row;
  int64_t offset = 0;
#pragma GCC unroll 1
  for (int64_t k = 0; k < count; ++k) {
    const Vf right0 = load(b);
    const Vf right1 = load(b + kLanes);
    b += b_stride;
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const Vf value = splat(left[i][offset]);
      sums[i][0] += value * right0;
      sums[i][1] += value * right1;
    }
    offset += kColumn;
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) store(c + i * c_stride + j * kLanes, sums[i][j]);
}

/// Like tile_of, with 1 to kTileRows rows.
template <bool kAdd, int kColumn>
inline void tile(int64_t rows, Left<kColumn> a, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                 int64_t count) {
  switch (rows) {
    case 1:
      return tile_of<1, kAdd, kColumn>(a, b, b_stride, c, c_stride, count);
    case 2:
      return tile_of<2, kAdd, kColumn>(a, b, b_stride, c, c_stride, count);
    case 3:
      return tile_of<3, kAdd, kColumn>(a, b, b_stride, c, c_stride, count);
    case 4:
      return tile_of<4, kAdd, kColumn>(a, b, b_stride, c, c_stride, count);
    case 5:
      return tile_of<5, kAdd, kColumn>(a, b, b_stride, c, c_stride, count);
    default:
      return tile_of<6, kAdd, kColumn>(a, b, b_stride, c, c_stride, count);
  }
}

template <typename T>
inline Vf load_up_to(const T* p, int64_t count) {
  return count >= kLanes ? load(p) : count > 0 ? load_part(p, count) : Vf{};
}
template <typename T>
inline void store_up_to(T* p, Vf v, int64_t count) {
  if (count >= kLanes) return store(p, v);
  if (count > 0) store_part(p, v, count);
}

/// to[rows x padded(width)] = from, with zeros beyond width.
template <typename T>
inline void pack(const T* from, int64_t stride, int64_t rows, int64_t width, float* to) {
  const int64_t to_stride = padded(width);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < to_stride; j += kLanes)
      store(to + i * to_stride + j, load_up_to(from + i * stride + j, width - j));
}

/// Writes factor * from (rows of padded(width) floats) as T.
template <typename T>
inline void unpack(const float* from, float factor, int64_t rows, int64_t width, T* to, int64_t stride) {
  const int64_t from_stride = padded(width);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < width; j += kLanes)
      store_up_to(to + i * stride + j, load(from + i * from_stride + j) * factor, width - j);
}

/// Prefetches rows that are needed soon, because a row of one head is too short for the hardware to predict the next.
template <typename T>
inline void prefetch_rows(const void* from, int64_t offset, int64_t stride, int64_t rows, int64_t width) {
  constexpr int64_t kLineElems = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < width; j += kLineElems)
      __builtin_prefetch(static_cast<const T*>(from) + offset + i * stride + j, 0, 2);
}

/// The number of a rank's tokens before a position, if its late chunk had no end.
inline int64_t tokens_before(const ContextChunks& chunks, int64_t position) {
  const int64_t early = position - chunks.begin(0), late = position - chunks.begin(1);
  return (early < 0 ? 0 : least(early, chunks.chunk_tokens())) + (late < 0 ? 0 : late);
}

/// The keys of a block that its queries from `begin` on (at most kBlock) do not see, although these keys are not later
/// than the queries: keys outside of the window, or of earlier documents.
class Hidden {
 public:
  template <typename Args>
  Hidden(const Args& all, const AttentionBlock& block, int64_t sequence, int64_t begin) {
    if (all.window == 0 && all.document_begins == nullptr) return;
    queries_ = least(kBlock, block.queries - begin);
    for (int64_t i = 0; i < queries_; ++i) {
      const int64_t query = block.first_query + begin + i;
      int64_t oldest = all.document_begins == nullptr ? 0 : all.document_begins[sequence * all.tokens + query];
      if (const int64_t in_window = all.queries.position(query) + 1 - all.window; all.window > 0 && in_window > oldest)
        oldest = in_window;
      keys_[i] = tokens_before(all.keys, oldest) - block.first_key;
    }
  }
  /// The first key of the first tile of keys that one of the queries sees.
  int64_t first_tile() const { return keys_[0] > 0 ? keys_[0] / kBlock * kBlock : 0; }
  /// behind[i] = the last of the keys from `key` on that query i does not see, as an index into the tile; -1: there is
  /// none. If all are -1, returns false without writing them.
  bool last_keys(int64_t key, float (&behind)[kBlock]) const {
    bool hides = false;
    for (int64_t i = 0; i < queries_; ++i) hides |= keys_[i] > key;
    for (int64_t i = 0; i < kBlock && hides; ++i)
      behind[i] = static_cast<float>(i < queries_ && keys_[i] > key ? least(keys_[i] - key - 1, kBlock) : -1);
    return hides;
  }

 private:
  int64_t queries_ = 0;        // 0: nothing is hidden
  int64_t keys_[kBlock] = {};  // the number of hidden keys
};

/// Prefetches q, k and v of a tile of queries and of its diagonal. Tiles are counted over sequences, heads and the
/// block's queries.
template <typename T, typename Args>
inline void prefetch_block(const Args& args, const AttentionBlock& block, int64_t index) {
  const int64_t tiles = (block.queries + kBlock - 1) / kBlock;
  const int64_t head = index / tiles % args.heads;
  const int64_t sequence = index / tiles / args.heads;
  if (sequence >= args.batch) return;
  const int64_t begin = index % tiles * kBlock;
  const int64_t rows = least(kBlock, block.queries - begin);
  const int64_t row = sequence * args.tokens + block.first_query + begin;
  const int64_t keys = least(kBlock, block.keys - begin);
  const int64_t kv_offset = (sequence * args.tokens + block.first_key + begin) * args.kv_stride +
                            head / (args.heads / args.kv_heads) * args.head_dim;
  prefetch_rows<T>(args.q, row * args.q_stride + head * args.head_dim, args.q_stride, rows, args.head_dim);
  prefetch_rows<T>(args.k, kv_offset, args.kv_stride, keys, args.head_dim);
  prefetch_rows<T>(args.v, kv_offset, args.kv_stride, keys, args.head_dim);
  if constexpr (requires { args.dout; }) {
    prefetch_rows<T>(args.dout, row * args.out_stride + head * args.head_dim, args.out_stride, rows, args.head_dim);
    prefetch_rows<T>(args.out, row * args.out_stride + head * args.head_dim, args.out_stride, rows, args.head_dim);
  }
}

template <int kStep>
inline void transpose_registers(Vf (&rows)[kLanes]) {
  if constexpr (kStep < kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      if ((i & kStep) == 0) exchange<kStep>(rows[i], rows[i + kStep]);
    transpose_registers<2 * kStep>(rows);
  }
}

/// to[padded(width) x kBlock] = the transpose of from[rows x width], with zeros beyond both.
template <typename T>
inline void transpose(const T* from, int64_t stride, int64_t rows, int64_t width, float* to) {
  const int64_t columns = padded(rows);
  for (int64_t i = 0; i < columns; i += kLanes)
    for (int64_t j = 0; j < width; j += kLanes) {
      Vf square[kLanes];
      if (i + kLanes <= rows && j + kLanes <= width) {
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) square[r] = load(from + (i + r) * stride + j);
      } else {
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r)
          square[r] = i + r < rows ? load_up_to(from + (i + r) * stride + j, width - j) : Vf{};
      }
      transpose_registers<1>(square);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) store(to + (j + r) * kBlock + i, square[r]);
    }
}

/// log x to about 2 ulp for normal x >= 1, such as a sum that contains the e^0 of its own maximum. NaN and infinity are
/// returned. x = 2^n m with m in [sqrt(1/2), sqrt(2)); then the polynomial of Cephes' logf.
inline Vf log_of_sum(Vf x) {
  const Vi bits = reinterpret_cast<Vi>(x) - 0x3f3504f3;
  const Vf n = __builtin_convertvector(bits >> 23, Vf);
  const Vi mantissa = (bits & 0x7fffff) + 0x3f3504f3;
  const Vf f = reinterpret_cast<Vf>(mantissa) - 1.0f;
  const Vf square = f * f;
  Vf p = splat(7.0376836292e-2f);
  for (float c : {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f,
                  2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f})
    p = p * f + c;
  const Vf value = n * 0.693359375f + (f + (f * square * p - n * 2.12194440e-4f - 0.5f * square));
  return x < splat(__builtin_inff()) ? value : x;
}

}  // namespace slipstream::kernels::SLIP_ISA
