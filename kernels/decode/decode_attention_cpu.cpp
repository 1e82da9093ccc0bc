// SPDX-License-Identifier: Apache-2.0
// Attention of one new token of each of several sequences on the CPU. Keys and values are read forward, once each.

#include <algorithm>

#include "kernels/common/vectors.h"
#include "kernels/decode/decode.h"
#include "kernels/decode/shared_range.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

constexpr int64_t kAheadBytes = 4 * 1024;
template <typename T>
constexpr int64_t kElemsOfLine = 64 / static_cast<int64_t>(sizeof(T));
constexpr int64_t kVectors = kKeyBlock / kLanes;  // of the scores of a block
constexpr int kParts = kLanes >= 8 ? 4 : 2;       // the sums of a score: the latency of one is hidden by the others
constexpr int64_t kTokensOfTurn = 32;             // as many values as stay in the cache for all heads that share them

/// Keys and values of one sequence and key-value head.
template <typename T>
struct Kept {
  T* keys;
  T* values;

  Kept(const KeyCache& cache, int64_t sequence, int64_t kv_heads, int64_t kv_head, int64_t head_dim)
      : keys(static_cast<T*>(cache.at) + sequence * key_cache_elems(cache.capacity, kv_heads, head_dim) +
             key_cache_elems(cache.capacity, kv_head, head_dim)),
        values(keys + cache.capacity * head_dim) {}

  void keep(int64_t head_dim, int64_t token, const float* k, const float* v) const {
    T* const to = keys + token / kKeyBlock * kKeyBlock * head_dim + token % kKeyBlock;
    for (int64_t i = 0; i < head_dim; ++i) to[i * kKeyBlock] = T(k[i]);
    for (int64_t i = 0; i < head_dim; ++i) values[token * head_dim + i] = T(v[i]);
  }
};

/// scores = scale * q . k for the tokens of one block, `keys` [head_dim, kKeyBlock].
template <typename T>
void score(const float* q, const T* keys, int64_t head_dim, float scale, float* scores) {
  Vf sums[kParts][kVectors] = {};
  const auto add = [&](int part, int64_t i) {
    for (int64_t v = 0; v < kVectors; ++v) sums[part][v] += splat(q[i]) * load(keys + i * kKeyBlock + v * kLanes);
  };
  int64_t i = 0;
  for (; i + kParts <= head_dim; i += kParts)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      __builtin_prefetch(reinterpret_cast<const char*>(keys + (i + part) * kKeyBlock) + kAheadBytes);
      add(part, i + part);
    }
  for (; i < head_dim; ++i) add(0, i);
  for (int64_t v = 0; v < kVectors; ++v) {
    Vf all = sums[0][v];
    for (int part = 1; part < kParts; ++part) all += sums[part][v];
    store(scores + v * kLanes, all * scale);
  }
}

/// Replaces scores by their softmax.
void softmax(float* scores, int64_t count) {
  Vf highest = splat(scores[0]);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) highest = max(highest, load(scores + i));
  float top = max(highest);
  for (; i < count; ++i) top = std::max(top, scores[i]);
  Vf total = {};
  for_vectors(0, count, [&](auto lanes, int64_t at) {
    const Vf weight = exp_bounded(lanes.load(scores + at) - top);
    lanes.store(scores + at, weight);
    total += lanes.keep(weight);
  });
  const float factor = 1.0f / sum(total);
  for_vectors(0, count, [&](auto lanes, int64_t at) { lanes.store(scores + at, lanes.load(scores + at) * factor); });
}

/// out += sum of weights[s] values[s] in columns [at, at + kWide vectors).
template <int kWide, typename T>
void add_columns(const float* weights, const T* values, int64_t tokens, int64_t head_dim, int64_t at, float* out) {
  Vf sums[kWide];
  for (int v = 0; v < kWide; ++v) sums[v] = load(out + at + v * kLanes);
  for (int64_t s = 0; s < tokens; ++s) {
    const T* const row = values + s * head_dim + at;
    for (int64_t i = 0; i < kWide * kLanes; i += kElemsOfLine<T>)
      __builtin_prefetch(reinterpret_cast<const char*>(row + i) + kAheadBytes);
    for (int v = 0; v < kWide; ++v) sums[v] += splat(weights[s]) * load(row + v * kLanes);
  }
  for (int v = 0; v < kWide; ++v) store(out + at + v * kLanes, sums[v]);
}

template <typename T>
void add_values(const float* weights, const T* values, int64_t tokens, int64_t head_dim, float* out) {
  int64_t at = 0;
  for (; at + 8 * kLanes <= head_dim; at += 8 * kLanes) add_columns<8>(weights, values, tokens, head_dim, at, out);
  for (; at + 4 * kLanes <= head_dim; at += 4 * kLanes) add_columns<4>(weights, values, tokens, head_dim, at, out);
  for (; at + kLanes <= head_dim; at += kLanes) add_columns<1>(weights, values, tokens, head_dim, at, out);
  for (int64_t s = 0; s < tokens; ++s)
    for (int64_t i = at; i < head_dim; ++i) out[i] += weights[s] * static_cast<float>(values[s * head_dim + i]);
}

/// Computes all heads of a row that share a key-value head. scores: [group, stride].
template <typename T>
void attend(const OneTokenAttention& args, int64_t row, int64_t kv_head, float* scores, int64_t stride) {
  const int64_t E = args.head_dim, group = args.heads / args.kv_heads, first = kv_head * group,
                token = args.tokens[row], begin = first_visible(token, args.window),
                begin_of_blocks = begin / kKeyBlock * kKeyBlock, count = token + 1 - begin;
  const float* const q = args.qkv + row * (args.heads + 2 * args.kv_heads) * E;
  const float* const new_k = q + (args.heads + kv_head) * E;
  const Kept<T> kept(args.cache, args.sequences[row], args.kv_heads, kv_head, E);
  kept.keep(E, token, new_k, new_k + args.kv_heads * E);
  const T* const values = kept.values + begin * E;
  for (int64_t s = begin_of_blocks; s <= token; s += kKeyBlock)
    for (int64_t h = 0; h < group; ++h)
      score(q + (first + h) * E, kept.keys + s * E, E, args.scale, scores + h * stride + s - begin_of_blocks);
  float* const out = args.out + (row * args.heads + first) * E;
  std::fill_n(out, group * E, 0.0f);
  scores += begin - begin_of_blocks;
  for (int64_t h = 0; h < group; ++h) softmax(scores + h * stride, count);
  for (int64_t s = 0; s < count; s += kTokensOfTurn)
    for (int64_t h = 0; h < group; ++h)
      add_values(scores + h * stride + s, values + s * E, std::min(kTokensOfTurn, count - s), E, out + h * E);
}

/// Calls body(T{}) with the element type of the cache.
template <typename Body>
void for_type(const KeyCache& cache, const Body& body) {
  cache.dtype == DType::f32 ? body(float{}) : body(bfloat16{});
}

}  // namespace

void keep_keys_cpu(LaunchContext& context, const KeepKeys& args) {
  for_type(args.to, [&](auto type) {
    context.parallel_for(args.kv_heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t kv_head = begin; kv_head < end; ++kv_head) {
        const Kept<decltype(type)> kept(args.to, args.sequence, args.kv_heads, kv_head, args.head_dim);
        for (int64_t r = 0; r < args.rows; ++r) {
          const int64_t at = r * args.row_stride + kv_head * args.head_dim;
          kept.keep(args.head_dim, args.first + r, args.k + at, args.v + at);
        }
      }
    });
  });
}

void one_token_attention_cpu(LaunchContext& context, const OneTokenAttention& args) {
  const int64_t group = args.heads / args.kv_heads, stride = attention_scores(args) / (args.rows * args.heads);
  for_type(args.cache, [&](auto type) {
    for_shared(context, args.rows * args.kv_heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item)
        attend<decltype(type)>(args, item / args.kv_heads, item % args.kv_heads, args.scores + item * group * stride,
                               stride);
    });
  });
}

}  // namespace slipstream::kernels::SLIP_ISA
