// SPDX-License-Identifier: Apache-2.0
// Attention forward on the CPU: a block of queries with every block of keys up to its diagonal.

#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/attention/tile.h"
#include "kernels/attention/weight_dropout.h"

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
  float behind[kBlock];            // Hidden::last_keys()
  float factors[kBlock * kBlock];  // of dropout: [keys, queries]
};

/// Turns kLanes columns of scores into weights and updates their running maximum and sum. Queries see the keys up to
/// `first_query` + lane; `keys` of them are stored.
inline void softmax_columns(float* scores, int64_t keys, int64_t first_query, float scale, float* maximum, float* sum,
                            float* rescale) {
  Vf query;
  for (int lane = 0; lane < kLanes; ++lane) query[lane] = static_cast<float>(first_query + lane);
  const int64_t open = least(keys, first_query + 1);  // the keys that every lane sees
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

/// softmax_columns() for queries that see no keys up to `last_hidden`. A query may see no key at all.
inline void softmax_columns_with_hidden(float* scores, int64_t keys, int64_t first_query, const float* last_hidden,
                                        float scale, float* maximum, float* sum, float* rescale) {
  Vf query;
  for (int lane = 0; lane < kLanes; ++lane) query[lane] = static_cast<float>(first_query + lane);
  const Vf behind = load(last_hidden);
  Vf high = splat(-__builtin_inff());
  for (int64_t s = 0; s < keys; ++s) {
    const Vf at = splat(static_cast<float>(s));
    high = ((query >= at) & (at > behind)) ? max(high, load(scores + s * kBlock)) : high;
  }
  const Vf before = load(maximum), now = max(before, high * scale);
  const Vf base = now > splat(-__builtin_inff()) ? now : Vf{};
  Vf total = {};
  for (int64_t s = 0; s < keys; ++s) {
    const Vf at = splat(static_cast<float>(s)), weight = exp_bounded(load(scores + s * kBlock) * scale - base);
    const Vf seen = ((query >= at) & (at > behind)) ? weight : Vf{};
    store(scores + s * kBlock, seen);
    total += seen;
  }
  const Vf factor = exp_bounded(before - base);
  store(maximum, now);
  store(rescale, factor);
  store(sum, load(sum) * factor + total);
}

/// Adds keys [0, keys) of a block to the output of `queries` queries. Query i sees key s if s <= i + ahead and, with
/// `hides`, s > scratch.behind[i]. With `drops`, its weights are multiplied by scratch.factors.
inline void add_block(Scratch& scratch, const float* k, int64_t k_stride, int64_t queries, int64_t keys, int64_t ahead,
                      bool hides, bool drops, int64_t head_dim, float scale, bool first) {
  for (int64_t i = 0; i < queries; i += kTileCols) {
    const int64_t seen = least(keys, i + kTileCols + ahead);
    for (int64_t s = 0; s < seen; s += kTileRows)
      tile<false>(least(kTileRows, seen - s), Rows{k + s * k_stride, k_stride}, scratch.q + i, kBlock,
                  scratch.scores + s * kBlock + i, kBlock, head_dim);
    for (int64_t j = i; j < i + kTileCols; j += kLanes) {
      float *const scores = scratch.scores + j, *const maximum = scratch.maximum + j, *const sum = scratch.sum + j,
                   *const rescale = scratch.rescale + j;
      if (hides)
        softmax_columns_with_hidden(scores, seen, j + ahead, scratch.behind + j, scale, maximum, sum, rescale);
      else
        softmax_columns(scores, seen, j + ahead, scale, maximum, sum, rescale);
    }
    if (drops) multiply_columns(scratch.scores + i, scratch.factors + i, seen);
    // A tile of the rows below may reach into these columns from the next ones.
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
inline void one_tile_of_queries(Scratch& scratch, const AttentionBlockForward& args, int64_t sequence, int64_t head,
                                int64_t begin) {
  const AttentionForward& all = args.all;
  const AttentionBlock& block = args.block;
  const int64_t width = padded(all.head_dim);
  const int64_t queries = least(kBlock, block.queries - begin);
  const int64_t kv_offset =
      (sequence * all.tokens + block.first_key) * all.kv_stride + head / (all.heads / all.kv_heads) * all.head_dim;
  const T* const k = static_cast<const T*>(all.k) + kv_offset;
  const T* const v = static_cast<const T*>(all.v) + kv_offset;
  const int64_t row = sequence * all.tokens + block.first_query + begin;
  const int64_t row_of_head = (sequence * all.heads + head) * all.tokens + block.first_query + begin;
  transpose(static_cast<const T*>(all.q) + row * all.q_stride + head * all.head_dim, all.q_stride, queries,
            all.head_dim, scratch.q);
  for (int j = 0; j < kBlock; j += kLanes) {
    store(scratch.maximum + j, splat(-__builtin_inff()));
    store(scratch.sum + j, Vf{});
  }
  if (!args.first) {
    std::memcpy(scratch.maximum, args.carried.maximum + row_of_head, static_cast<size_t>(queries) * sizeof(float));
    std::memcpy(scratch.sum, args.carried.sum + row_of_head, static_cast<size_t>(queries) * sizeof(float));
    pack(args.carried.out + row_of_head * all.head_dim, all.head_dim, queries, all.head_dim, scratch.out);
  }
  const int64_t end = block.causal ? begin + 1 : block.keys;  // the tiles of keys up to here
  const Hidden hidden(all, block, sequence, begin);
  const int64_t start = hidden.first_tile();
  for (int64_t key = start; key < end; key += kBlock) {
    const int64_t keys = least(kBlock, block.keys - key), ahead = block.causal ? begin - key : keys;
    const bool first = args.first && key == start, drops = all.dropout != nullptr,
               hides = hidden.last_keys(key, scratch.behind);
    if (drops)
      dropout_factors(all, sequence, head, block.first_query + begin, block.first_key + key, keys, scratch.factors);
    pack(v + key * all.kv_stride, all.kv_stride, keys, all.head_dim, scratch.v);
    if constexpr (std::is_same_v<T, float>) {
      add_block(scratch, k + key * all.kv_stride, all.kv_stride, queries, keys, ahead, hides, drops, all.head_dim,
                all.scale, first);
    } else {
      pack(k + key * all.kv_stride, all.kv_stride, keys, all.head_dim, scratch.k);
      add_block(scratch, scratch.k, width, queries, keys, ahead, hides, drops, all.head_dim, all.scale, first);
    }
  }
  if (!args.last) {
    std::memcpy(args.carried.maximum + row_of_head, scratch.maximum, static_cast<size_t>(queries) * sizeof(float));
    std::memcpy(args.carried.sum + row_of_head, scratch.sum, static_cast<size_t>(queries) * sizeof(float));
    return unpack(scratch.out, 1.0f, queries, all.head_dim, args.carried.out + row_of_head * all.head_dim,
                  all.head_dim);
  }
  T* const out = static_cast<T*>(all.out) + row * all.out_stride + head * all.head_dim;
  for (int64_t i = 0; i < queries; ++i)
    unpack(scratch.out + i * width, 1.0f / scratch.sum[i], 1, all.head_dim, out + i * all.out_stride, all.out_stride);
  for (int64_t i = 0; i < queries; i += kLanes)
    store_up_to(all.lse + row_of_head + i, load(scratch.maximum + i) + log_of_sum(load(scratch.sum + i)), queries - i);
}

template <typename T>
void forward(LaunchContext& context, const AttentionBlockForward& args) {
  const AttentionForward& all = args.all;
  const int64_t tiles = (args.block.queries + kBlock - 1) / kBlock;
  context.parallel_for(all.batch * all.heads * tiles, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t head = item / tiles;
      prefetch_block<T>(all, args.block, item + 1);
      one_tile_of_queries<T>(scratch, args, head / all.heads, head % all.heads, item % tiles * kBlock);
    }
  });
}

}  // namespace

void attention_block_forward_cpu(LaunchContext& context, const AttentionBlockForward& args) {
  if (args.all.dtype == DType::f32) return forward<float>(context, args);
  forward<bfloat16>(context, args);
}

void attention_forward_cpu(LaunchContext& context, const AttentionForward& args) {
  attention_block_forward_cpu(context, {.all = args, .block = {0, args.tokens, 0, args.tokens}, .carried = {}});
}

}  // namespace slipstream::kernels::SLIP_ISA
