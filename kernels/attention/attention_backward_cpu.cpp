// SPDX-License-Identifier: Apache-2.0
// Attention backward on the CPU: one block of queries at a time, with dk and dv of one key-value head summed in the
// workspace.

#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/attention/tile.h"
#include "kernels/attention/weight_dropout.h"

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
  float dot[kBlock];               // dout . out of each query
  float behind[kBlock];            // Hidden::last_keys()
  float factors[kBlock * kBlock];  // of dropout: [keys, queries]
};

/// The current pair of blocks. Query i sees key s if s <= i + ahead and, with `hides`, s > scratch.behind[i].
struct Pair {
  const float* v;
  int64_t v_stride;
  float* dk;
  float* dv;
  int64_t queries;
  int64_t keys;
  int64_t ahead;
  bool hides;
  bool drops;  // weights are multiplied by scratch.factors
  int64_t head_dim;
  float scale;
  bool first;  // it is the first block of keys of these queries
};

/// weights = exp(scale * scores - lse), dscores = weights * (dweights - dot), zero for masked keys.
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

/// Zeroes the weights of the keys up to `last_hidden`.
inline void hide_columns(float* weights, float* dscores, int64_t keys, const float* last_hidden) {
  for (int lane = 0; lane < kLanes; ++lane)
    for (int64_t s = 0; s < least(keys, static_cast<int64_t>(last_hidden[lane]) + 1); ++s)
      weights[s * kBlock + lane] = dscores[s * kBlock + lane] = 0.0f;
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
    if (pair.drops) multiply_columns(scratch.dscores + i, scratch.factors + i, seen);
    for (int64_t j = i; j < i + kTileCols; j += kLanes)
      softmax_columns(scratch.weights + j, scratch.dscores + j, seen, j + pair.ahead, pair.scale, load(scratch.lse + j),
                      load(scratch.dot + j));
    for (int64_t j = i; j < i + kTileCols && pair.hides; j += kLanes)
      hide_columns(scratch.weights + j, scratch.dscores + j, seen, scratch.behind + j);
    if (pair.drops) multiply_columns(scratch.weights + i, scratch.factors + i, seen);
    // The tiles of the products below reach at most kTileRows - 1 keys beyond these columns.
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

/// dot[i] = dout[i] . out[i]. Lanes beyond `queries` are 0, and so is their lse.
template <typename T>
inline void prepare_queries(Scratch& scratch, const AttentionBackward& args, int64_t sequence, int64_t head,
                            int64_t first, int64_t queries) {
  const int64_t width = padded(args.head_dim);
  const int64_t row = sequence * args.tokens + first;
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
    scratch.lse[i] = i < queries ? args.lse[(sequence * args.heads + head) * args.tokens + first + i] : 0.0f;
  }
}

template <typename T>
inline void one_tile_of_queries(Scratch& scratch, const AttentionBlockBackward& args, int64_t sequence, int64_t head,
                                int64_t begin, const T* k, const T* v, float* dk, float* dv) {
  const AttentionBackward& all = args.all;
  const AttentionBlock& block = args.block;
  const int64_t width = padded(all.head_dim);
  const int64_t queries = least(kBlock, block.queries - begin), first_query = block.first_query + begin;
  prepare_queries<T>(scratch, all, sequence, head, first_query, queries);
  const int64_t carried = ((sequence * all.heads + head) * all.tokens + first_query) * all.head_dim;
  const int64_t end = block.causal ? begin + 1 : block.keys;  // the tiles of keys up to here
  const Hidden hidden(all, block, sequence, begin);
  const int64_t start = hidden.first_tile();
  if (!args.first)
    pack(args.dq_sum + carried, all.head_dim, queries, all.head_dim, scratch.dq);
  else if (start >= end)  // no tile of keys writes it
    std::memset(scratch.dq, 0, sizeof(scratch.dq));
  for (int64_t key = start; key < end; key += kBlock) {
    const int64_t keys = least(kBlock, block.keys - key);
    const int64_t ahead = block.causal ? begin - key : keys;
    Pair pair = {.v = scratch.v,
                 .v_stride = width,
                 .dk = dk + key * width,
                 .dv = dv + key * width,
                 .queries = queries,
                 .keys = keys,
                 .ahead = ahead,
                 .hides = hidden.last_keys(key, scratch.behind),
                 .drops = all.dropout != nullptr,
                 .head_dim = all.head_dim,
                 .scale = all.scale,
                 .first = args.first && key == start};
    if (pair.drops) dropout_factors(all, sequence, head, first_query, block.first_key + key, keys, scratch.factors);
    pack(k + key * all.kv_stride, all.kv_stride, keys, all.head_dim, scratch.k);
    if constexpr (std::is_same_v<T, float>) {
      pair.v = v + key * all.kv_stride;
      pair.v_stride = all.kv_stride;
    } else {
      pack(v + key * all.kv_stride, all.kv_stride, keys, all.head_dim, scratch.v);
    }
    add_block(scratch, pair);
  }
  if (!args.last) return unpack(scratch.dq, 1.0f, queries, all.head_dim, args.dq_sum + carried, all.head_dim);
  T* const dq = static_cast<T*>(all.dq) + (sequence * all.tokens + first_query) * all.dq_stride + head * all.head_dim;
  unpack(scratch.dq, all.scale, queries, all.head_dim, dq, all.dq_stride);
}

/// Sums dk and dv of the block's keys over the heads of one key-value head.
template <typename T>
inline void one_key_value_head(Scratch& scratch, const AttentionBlockBackward& args, int64_t sequence, int64_t kv_head,
                               float* dk, float* dv) {
  const AttentionBackward& all = args.all;
  const AttentionBlock& block = args.block;
  const int64_t elems = block.keys * padded(all.head_dim);
  const int64_t group = all.heads / all.kv_heads;
  const int64_t tiles = (block.queries + kBlock - 1) / kBlock;
  const int64_t kv_offset = (sequence * all.tokens + block.first_key) * all.kv_stride + kv_head * all.head_dim;
  std::memset(dk, 0, static_cast<size_t>(elems) * sizeof(float));
  std::memset(dv, 0, static_cast<size_t>(elems) * sizeof(float));
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      prefetch_block<T>(all, block, (sequence * all.heads + head) * tiles + tile + 1);
      one_tile_of_queries<T>(scratch, args, sequence, head, tile * kBlock, static_cast<const T*>(all.k) + kv_offset,
                             static_cast<const T*>(all.v) + kv_offset, dk, dv);
    }
}

template <typename T>
inline void zero_rows(T* to, int64_t stride, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i)
    std::memset(static_cast<void*>(to + i * stride), 0, static_cast<size_t>(width) * sizeof(T));
}

/// The destination of dk and dv of a key-value head: columns of the caller's rows, with 0 outside the block's keys.
template <typename T>
inline void write_keys(const AttentionBlockBackward& args, const float* from, float factor, T* to, int64_t stride) {
  const AttentionBlock& block = args.block;
  const int64_t width = args.all.head_dim, behind = block.first_key + block.keys;
  zero_rows(to, stride, block.first_key, width);
  unpack(from, factor, block.keys, width, to + block.first_key * stride, stride);
  zero_rows(to + behind * stride, stride, args.all.tokens - behind, width);
}

template <typename T>
void backward(LaunchContext& context, const AttentionBlockBackward& args) {
  const AttentionBackward& all = args.all;
  const int64_t elems = all.tokens * padded(all.head_dim), kv_width = all.kv_heads * all.head_dim;
  context.parallel_for(all.batch * all.kv_heads, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch;
    // All heads of a range use the memory of its first head, which then stays in the cache.
    float* const dk = all.workspace + 2 * begin * elems;
    float* const dv = dk + elems;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t sequence = item / all.kv_heads, kv_head = item % all.kv_heads, column = kv_head * all.head_dim;
      one_key_value_head<T>(scratch, args, sequence, kv_head, dk, dv);
      if (args.dkv != nullptr) {
        float* const to = args.dkv + sequence * all.tokens * 2 * kv_width + column;
        write_keys(args, dk, all.scale, to, 2 * kv_width);
        write_keys(args, dv, 1.0f, to + kv_width, 2 * kv_width);
      } else {
        const int64_t to = sequence * all.tokens * all.dkv_stride + column;
        write_keys(args, dk, all.scale, static_cast<T*>(all.dk) + to, all.dkv_stride);
        write_keys(args, dv, 1.0f, static_cast<T*>(all.dv) + to, all.dkv_stride);
      }
    }
  });
}

}  // namespace

void attention_block_backward_cpu(LaunchContext& context, const AttentionBlockBackward& args) {
  if (args.all.dtype == DType::f32) return backward<float>(context, args);
  backward<bfloat16>(context, args);
}

void attention_backward_cpu(LaunchContext& context, const AttentionBackward& args) {
  attention_block_backward_cpu(context, {.all = args, .block = {0, args.tokens, 0, args.tokens}});
}

}  // namespace slipstream::kernels::SLIP_ISA
