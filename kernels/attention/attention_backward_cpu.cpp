// SPDX-License-Identifier: Apache-2.0
// Attention backward on the CPU: a block of queries at a time, dk and dv of one key-value head summed in the workspace.

#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/attention/tile.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

struct alignas(64) Scratch {
  float q[kBlock * kHeadDimMax];  // [queries, padded head_dim]
  float dout[kBlock * kHeadDimMax];
  float q_t[kHeadDimMax * kBlock];  // [head_dim, queries]
  float dout_t[kHeadDimMax * kBlock];
  float k[kBlock * kHeadDimMax];   // [keys, padded head_dim]
  float v[kBlock * kHeadDimMax];   // only for bf16
  float dq[kBlock * kHeadDimMax];  // [queries, padded head_dim]
  float weights[kBlock * kBlock];  // [keys, queries]: scores, then weights
  float dscores[kBlock * kBlock];  // [keys, queries]: gradients of weights, then of scaled scores
  float lse[kBlock];
  float dot[kBlock];  // dout . out of each query
};

/// The pair of blocks at hand; query i sees key s if s <= i + ahead.
struct Pair {
  const float* v;
  int64_t v_stride;
  float* dk;
  float* dv;
  int64_t queries;
  int64_t keys;
  int64_t ahead;
  int64_t head_dim;
  float scale;
  bool first;  // first block of keys of these queries
};

/// weights = exp(scale * scores - lse), dscores = weights * (dweights - dot), zero where the key is masked.
inline void softmax_columns(float* weights, float* dscores, int64_t keys, int64_t first_query, float scale, Vf lse,
                            Vf dot) {
  const int64_t open = least(keys, first_query + 1);
  int64_t s = 0;
  for (; s < open; ++s) {
    const Vf weight = exp_bounded(load(weights + s * kBlock) * scale - lse);
    store(weights + s * kBlock, weight);
    store(dscores + s * kBlock, weight * (load(dscores + s * kBlock) - dot));
  }
  Vf query;
  for (int lane = 0; lane < kLanes; ++lane) query[lane] = static_cast<float>(first_query + lane);
  for (; s < keys; ++s) {
    const auto seen = query >= splat(static_cast<float>(s));
    const Vf weight = seen ? exp_bounded(load(weights + s * kBlock) * scale - lse) : Vf{};
    store(weights + s * kBlock, weight);
    store(dscores + s * kBlock, seen ? weight * (load(dscores + s * kBlock) - dot) : Vf{});
  }
}

inline void make_weights(Scratch& scratch, const Pair& pair) {
  const int64_t width = padded(pair.head_dim);
  for (int64_t i = 0; i < pair.queries; i += kTileCols) {
    const int64_t seen = least(pair.keys, i + kTileCols + pair.ahead);
    for (int64_t s = 0; s < seen; s += kTileRows) {
      const int64_t rows = least(kTileRows, seen - s);
      tile<false>(rows, Rows{scratch.k + s * width, width}, scratch.q_t + i, kBlock, scratch.weights + s * kBlock + i,
                  kBlock, pair.head_dim);
      tile<false>(rows, Rows{pair.v + s * pair.v_stride, pair.v_stride}, scratch.dout_t + i, kBlock,
                  scratch.dscores + s * kBlock + i, kBlock, pair.head_dim);
    }
    for (int64_t j = i; j < i + kTileCols; j += kLanes)
      softmax_columns(scratch.weights + j, scratch.dscores + j, seen, j + pair.ahead, pair.scale, load(scratch.lse + j),
                      load(scratch.dot + j));
    // Tiles of the products below reach at most kTileRows - 1 keys further than these columns.
    for (int64_t s = seen; s < least(pair.keys, seen + kTileRows - 1); ++s)
      for (int64_t j = i; j < i + kTileCols; j += kLanes) {
        store(scratch.weights + s * kBlock + j, Vf{});
        store(scratch.dscores + s * kBlock + j, Vf{});
      }
  }
}

inline void add_block(Scratch& scratch, const Pair& pair) {
  make_weights(scratch, pair);
  const int64_t width = padded(pair.head_dim);
  for (int64_t s = 0; s < pair.keys; s += kTileRows) {
    const int64_t rows = least(kTileRows, pair.keys - s);
    const int64_t from = s > pair.ahead ? s - pair.ahead : 0;  // the first query that sees key s
    for (int64_t j = 0; j < width; j += kTileCols) {
      tile<true>(rows, Rows{scratch.weights + s * kBlock + from, kBlock}, scratch.dout + from * width + j, width,
                 pair.dv + s * width + j, width, pair.queries - from);
      tile<true>(rows, Rows{scratch.dscores + s * kBlock + from, kBlock}, scratch.q + from * width + j, width,
                 pair.dk + s * width + j, width, pair.queries - from);
    }
  }
  for (int64_t i = 0; i < pair.queries; i += kTileRows) {
    const int64_t rows = least(kTileRows, pair.queries - i);
    const int64_t seen = least(pair.keys, i + rows + pair.ahead);
    for (int64_t j = 0; j < width; j += kTileCols) {
      const ScoresTransposed dscores = {scratch.dscores + i, 1};
      float* const dq = scratch.dq + i * width + j;
      if (pair.first)
        tile<false>(rows, dscores, scratch.k + j, width, dq, width, seen);
      else
        tile<true>(rows, dscores, scratch.k + j, width, dq, width, seen);
    }
  }
}

/// dot[i] = dout[i] . out[i]; lanes beyond `queries` are 0, as is their lse.
template <typename T>
inline void prepare_queries(Scratch& scratch, const AttentionBackward& args, int64_t sequence, int64_t head,
                            int64_t begin, int64_t queries) {
  const int64_t width = padded(args.head_dim);
  const int64_t row = sequence * args.tokens + begin;
  const T* const out = static_cast<const T*>(args.out) + row * args.out_stride + head * args.head_dim;
  pack(static_cast<const T*>(args.q) + row * args.q_stride + head * args.head_dim, args.q_stride, queries,
       args.head_dim, scratch.q);
  pack(static_cast<const T*>(args.dout) + row * args.out_stride + head * args.head_dim, args.out_stride, queries,
       args.head_dim, scratch.dout);
  transpose(scratch.q, width, queries, width, scratch.q_t);
  transpose(scratch.dout, width, queries, width, scratch.dout_t);
  for (int64_t i = 0; i < kBlock; ++i) {
    Vf dot = {};
    if (i < queries)
      for (int64_t j = 0; j < args.head_dim; j += kLanes)
        dot += load(scratch.dout + i * width + j) * load_up_to(out + i * args.out_stride + j, args.head_dim - j);
    scratch.dot[i] = sum(dot);
    scratch.lse[i] = i < queries ? args.lse[(sequence * args.heads + head) * args.tokens + begin + i] : 0.0f;
  }
}

template <typename T>
inline void one_key_value_head(Scratch& scratch, const AttentionBackward& args, int64_t sequence, int64_t kv_head,
                               float* dk, float* dv) {
  const int64_t width = padded(args.head_dim);
  const int64_t group = args.heads / args.kv_heads;
  const int64_t blocks = (args.tokens + kBlock - 1) / kBlock;
  const int64_t kv_offset = sequence * args.tokens * args.kv_stride + kv_head * args.head_dim;
  const T* const k = static_cast<const T*>(args.k) + kv_offset;
  const T* const v = static_cast<const T*>(args.v) + kv_offset;
  std::memset(dk, 0, static_cast<size_t>(args.tokens * width) * sizeof(float));
  std::memset(dv, 0, static_cast<size_t>(args.tokens * width) * sizeof(float));
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int64_t begin = 0; begin < args.tokens; begin += kBlock) {
      const int64_t queries = least(kBlock, args.tokens - begin);
      prepare_queries<T>(scratch, args, sequence, head, begin, queries);
      prefetch_block<T>(args, (sequence * args.heads + head) * blocks + begin / kBlock + 1);
      for (int64_t key = 0; key <= begin; key += kBlock) {
        const int64_t keys = least(kBlock, args.tokens - key);
        Pair pair = {scratch.v, width,       dk + key * width, dv + key * width, queries,
                     keys,      begin - key, args.head_dim,    args.scale,       key == 0};
        pack(k + key * args.kv_stride, args.kv_stride, keys, args.head_dim, scratch.k);
        if constexpr (std::is_same_v<T, float>) {
          pair.v = v + key * args.kv_stride;
          pair.v_stride = args.kv_stride;
        } else {
          pack(v + key * args.kv_stride, args.kv_stride, keys, args.head_dim, scratch.v);
        }
        add_block(scratch, pair);
      }
      T* const dq = static_cast<T*>(args.dq) + (sequence * args.tokens + begin) * args.dq_stride + head * args.head_dim;
      unpack(scratch.dq, args.scale, queries, args.head_dim, dq, args.dq_stride);
    }
  const int64_t to = sequence * args.tokens * args.dkv_stride + kv_head * args.head_dim;
  unpack(dk, args.scale, args.tokens, args.head_dim, static_cast<T*>(args.dk) + to, args.dkv_stride);
  unpack(dv, 1.0f, args.tokens, args.head_dim, static_cast<T*>(args.dv) + to, args.dkv_stride);
}

template <typename T>
void backward(LaunchContext& context, const AttentionBackward& args) {
  const int64_t elems = args.tokens * padded(args.head_dim);
  context.parallel_for(args.batch * args.kv_heads, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch;
    // All heads of a range use the place of its first, which then stays in the cache.
    float* const dk = args.workspace + 2 * begin * elems;
    for (int64_t item = begin; item < end; ++item)
      one_key_value_head<T>(scratch, args, item / args.kv_heads, item % args.kv_heads, dk, dk + elems);
  });
}

}  // namespace

void attention_backward_cpu(LaunchContext& context, const AttentionBackward& args) {
  if (args.dtype == DType::f32) return backward<float>(context, args);
  backward<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA
