// SPDX-License-Identifier: Apache-2.0
// Attention forward on the CPU: a block of queries against every block of keys up to its diagonal.

#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/attention/tile.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

struct alignas(64) Scratch {
  float q[kHeadDimMax * kBlock];    // transposed: [head_dim, queries]
  float k[kBlock * kHeadDimMax];    // [keys, head_dim]; only for bf16
  float v[kBlock * kHeadDimMax];    // [keys, padded head_dim]
  float out[kBlock * kHeadDimMax];  // [queries, padded head_dim]
  float scores[kBlock * kBlock];    // [keys, queries], then the weights
  float maximum[kBlock];
  float sum[kBlock];
  float rescale[kBlock];
};

/// Turns kLanes columns of scores into weights and updates their running maximum and sum. Queries see the keys up to
/// `first_query` + lane; `keys` of them are stored.
inline void softmax_columns(float* scores, int64_t keys, int64_t first_query, float scale, float* maximum, float* sum,
                            float* rescale) {
  Vf query;
  for (int lane = 0; lane < kLanes; ++lane) query[lane] = static_cast<float>(first_query + lane);
  const int64_t open = least(keys, first_query + 1);  // keys that every lane sees
  Vf high[2] = {splat(-__builtin_inff()), splat(-__builtin_inff())};
  int64_t s = 0;
  for (; s + 1 < open; s += 2) {
    high[0] = max(high[0], load(scores + s * kBlock));
    high[1] = max(high[1], load(scores + (s + 1) * kBlock));
  }
  for (; s < keys; ++s) {
    const Vf score = load(scores + s * kBlock);
    high[0] = query >= splat(static_cast<float>(s)) ? max(high[0], score) : high[0];
  }
  const Vf before = load(maximum);
  const Vf now = max(before, max(high[0], high[1]) * scale);
  Vf total[2] = {};
  for (s = 0; s + 1 < open; s += 2)
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const Vf weight = exp_bounded(load(scores + (s + i) * kBlock) * scale - now);
      store(scores + (s + i) * kBlock, weight);
      total[i] += weight;
    }
  for (; s < keys; ++s) {
    const Vf weight = exp_bounded(load(scores + s * kBlock) * scale - now);
    const Vf seen = query >= splat(static_cast<float>(s)) ? weight : Vf{};
    store(scores + s * kBlock, seen);
    total[0] += seen;
  }
  const Vf factor = exp_bounded(before - now);
  store(maximum, now);
  store(rescale, factor);
  store(sum, load(sum) * factor + (total[0] + total[1]));
}

/// Adds keys [0, keys) of a block to the output of `queries` queries; query i sees key s if s <= i + ahead.
inline void add_block(Scratch& scratch, const float* k, int64_t k_stride, int64_t queries, int64_t keys, int64_t ahead,
                      int64_t head_dim, float scale, bool first) {
  for (int64_t i = 0; i < queries; i += kTileCols) {
    const int64_t seen = least(keys, i + kTileCols + ahead);
    for (int64_t s = 0; s < seen; s += kTileRows)
      tile<false>(least(kTileRows, seen - s), Rows{k + s * k_stride, k_stride}, scratch.q + i, kBlock,
                  scratch.scores + s * kBlock + i, kBlock, head_dim);
    for (int64_t j = i; j < i + kTileCols; j += kLanes)
      softmax_columns(scratch.scores + j, seen, j + ahead, scale, scratch.maximum + j, scratch.sum + j,
                      scratch.rescale + j);
    // A tile of rows below may reach into these columns from the next ones.
    for (int64_t s = seen; s < least(keys, seen + kTileRows - 1); ++s)
      for (int64_t j = i; j < i + kTileCols; j += kLanes) store(scratch.scores + s * kBlock + j, Vf{});
  }
  const int64_t width = padded(head_dim);
  if (!first)
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t j = 0; j < width; j += kLanes)
        store(scratch.out + i * width + j, load(scratch.out + i * width + j) * scratch.rescale[i]);
  for (int64_t i = 0; i < queries; i += kTileRows) {
    const int64_t rows = least(kTileRows, queries - i);
    const int64_t seen = least(keys, i + rows + ahead);
    for (int64_t j = 0; j < width; j += kTileCols) {
      const ScoresTransposed weights = {scratch.scores + i, 1};
      float* const out = scratch.out + i * width + j;
      if (first)
        tile<false>(rows, weights, scratch.v + j, width, out, width, seen);
      else
        tile<true>(rows, weights, scratch.v + j, width, out, width, seen);
    }
  }
}

template <typename T>
inline void one_block_of_queries(Scratch& scratch, const AttentionForward& args, int64_t sequence, int64_t head,
                                 int64_t begin) {
  const int64_t width = padded(args.head_dim);
  const int64_t queries = least(kBlock, args.tokens - begin);
  const int64_t kv_offset =
      sequence * args.tokens * args.kv_stride + head / (args.heads / args.kv_heads) * args.head_dim;
  const T* const k = static_cast<const T*>(args.k) + kv_offset;
  const T* const v = static_cast<const T*>(args.v) + kv_offset;
  const int64_t row = sequence * args.tokens + begin;
  transpose(static_cast<const T*>(args.q) + row * args.q_stride + head * args.head_dim, args.q_stride, queries,
            args.head_dim, scratch.q);
  for (int j = 0; j < kBlock; j += kLanes) {
    store(scratch.maximum + j, splat(-__builtin_inff()));
    store(scratch.sum + j, Vf{});
  }
  for (int64_t key = 0; key <= begin; key += kBlock) {
    const int64_t keys = least(kBlock, args.tokens - key);
    pack(v + key * args.kv_stride, args.kv_stride, keys, args.head_dim, scratch.v);
    if constexpr (std::is_same_v<T, float>) {
      add_block(scratch, k + key * args.kv_stride, args.kv_stride, queries, keys, begin - key, args.head_dim,
                args.scale, key == 0);
    } else {
      pack(k + key * args.kv_stride, args.kv_stride, keys, args.head_dim, scratch.k);
      add_block(scratch, scratch.k, width, queries, keys, begin - key, args.head_dim, args.scale, key == 0);
    }
  }
  T* const out = static_cast<T*>(args.out) + row * args.out_stride + head * args.head_dim;
  for (int64_t i = 0; i < queries; ++i)
    unpack(scratch.out + i * width, 1.0f / scratch.sum[i], 1, args.head_dim, out + i * args.out_stride,
           args.out_stride);
  float* const lse = args.lse + (sequence * args.heads + head) * args.tokens + begin;
  for (int64_t i = 0; i < queries; i += kLanes)
    store_up_to(lse + i, load(scratch.maximum + i) + log_of_sum(load(scratch.sum + i)), queries - i);
}

template <typename T>
void forward(LaunchContext& context, const AttentionForward& args) {
  const int64_t blocks = (args.tokens + kBlock - 1) / kBlock;
  context.parallel_for(args.batch * args.heads * blocks, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t head = item / blocks;
      prefetch_block<T>(args, item + 1);
      one_block_of_queries<T>(scratch, args, head / args.heads, head % args.heads, item % blocks * kBlock);
    }
  });
}

}  // namespace

void attention_forward_cpu(LaunchContext& context, const AttentionForward& args) {
  if (args.dtype == DType::f32) return forward<float>(context, args);
  forward<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA
