// SPDX-License-Identifier: Apache-2.0
// Attention of one new token of each of several sequences on the CPU. Keys and values are read forward, once each.

#include <algorithm>

#include "kernels/common/vectors.h"
#include "kernels/decode/decode.h"
#include "kernels/decode/shared_range.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

constexpr int64_t kAheadBytes = 4 * 1024;
constexpr int64_t kFloatsOfLine = 16;
constexpr int64_t kVectors = kKeyBlock / kLanes;  // of the scores of a block
constexpr int kParts = kLanes >= 8 ? 4 : 2;       // sums of a score: latency hides behind the others
constexpr int64_t kTokensOfTurn = 32;             // values that stay in the cache for all heads that share them

float* keys_of(const KeyCache& cache, int64_t kv_head, int64_t head_dim) {
  return cache.at + 2 * kv_head * cache.capacity * head_dim;
}
float* values_of(const KeyCache& cache, int64_t kv_head, int64_t head_dim) {
  return cache.at + (2 * kv_head + 1) * cache.capacity * head_dim;
}

void keep(const KeyCache& cache, int64_t kv_head, int64_t head_dim, int64_t token, const float* k, const float* v) {
  float* const keys = keys_of(cache, kv_head, head_dim) + token / kKeyBlock * kKeyBlock * head_dim + token % kKeyBlock;
  for (int64_t i = 0; i < head_dim; ++i) keys[i * kKeyBlock] = k[i];
  std::copy_n(v, head_dim, values_of(cache, kv_head, head_dim) + token * head_dim);
}

/// scores = scale * q . k for the tokens of one block, `keys` [head_dim, kKeyBlock].
void score(const float* q, const float* keys, int64_t head_dim, float scale, float* scores) {
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
template <int kWide>
void add_columns(const float* weights, const float* values, int64_t tokens, int64_t head_dim, int64_t at, float* out) {
  Vf sums[kWide];
  for (int v = 0; v < kWide; ++v) sums[v] = load(out + at + v * kLanes);
  for (int64_t s = 0; s < tokens; ++s) {
    const float* const row = values + s * head_dim + at;
    for (int64_t i = 0; i < kWide * kLanes; i += kFloatsOfLine)
      __builtin_prefetch(reinterpret_cast<const char*>(row + i) + kAheadBytes);
    for (int v = 0; v < kWide; ++v) sums[v] += splat(weights[s]) * load(row + v * kLanes);
  }
  for (int v = 0; v < kWide; ++v) store(out + at + v * kLanes, sums[v]);
}

void add_values(const float* weights, const float* values, int64_t tokens, int64_t head_dim, float* out) {
  int64_t at = 0;
  for (; at + 8 * kLanes <= head_dim; at += 8 * kLanes) add_columns<8>(weights, values, tokens, head_dim, at, out);
  for (; at + 4 * kLanes <= head_dim; at += 4 * kLanes) add_columns<4>(weights, values, tokens, head_dim, at, out);
  for (; at + kLanes <= head_dim; at += kLanes) add_columns<1>(weights, values, tokens, head_dim, at, out);
  for (int64_t s = 0; s < tokens; ++s)
    for (int64_t i = at; i < head_dim; ++i) out[i] += weights[s] * values[s * head_dim + i];
}

/// All heads of a row that share a key-value head. scores: [group, stride].
void attend(const OneTokenAttention& args, int64_t row, int64_t kv_head, float* scores, int64_t stride) {
  const Attending& at = args.rows[static_cast<size_t>(row)];
  const int64_t E = args.head_dim, group = args.heads / args.kv_heads, first = kv_head * group,
                begin_of_blocks = at.begin / kKeyBlock * kKeyBlock, count = at.token + 1 - at.begin;
  const float* const q = args.qkv + row * (args.heads + 2 * args.kv_heads) * E;
  const float* const new_k = q + (args.heads + kv_head) * E;
  keep(at.cache, kv_head, E, at.token, new_k, new_k + args.kv_heads * E);
  const float* const keys = keys_of(at.cache, kv_head, E);
  const float* const values = values_of(at.cache, kv_head, E) + at.begin * E;
  for (int64_t s = begin_of_blocks; s <= at.token; s += kKeyBlock)
    for (int64_t h = 0; h < group; ++h)
      score(q + (first + h) * E, keys + s * E, E, args.scale, scores + h * stride + s - begin_of_blocks);
  float* const out = args.out + (row * args.heads + first) * E;
  std::fill_n(out, group * E, 0.0f);
  scores += at.begin - begin_of_blocks;
  for (int64_t h = 0; h < group; ++h) softmax(scores + h * stride, count);
  for (int64_t s = 0; s < count; s += kTokensOfTurn)
    for (int64_t h = 0; h < group; ++h)
      add_values(scores + h * stride + s, values + s * E, std::min(kTokensOfTurn, count - s), E, out + h * E);
}

}  // namespace

void keep_keys_cpu(LaunchContext& context, const KeepKeys& args) {
  context.parallel_for(args.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t kv_head = begin; kv_head < end; ++kv_head)
      for (int64_t r = 0; r < args.rows; ++r) {
        const int64_t at = r * args.row_stride + kv_head * args.head_dim;
        keep(args.to, kv_head, args.head_dim, args.first + r, args.k + at, args.v + at);
      }
  });
}

void one_token_attention_cpu(LaunchContext& context, const OneTokenAttention& args) {
  const int64_t rows = std::ssize(args.rows), group = args.heads / args.kv_heads,
                stride = attention_scores(args) / (rows * args.heads);
  for_shared(context, rows * args.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item)
      attend(args, item / args.kv_heads, item % args.kv_heads, args.scores + item * group * stride, stride);
  });
}

}  // namespace slipstream::kernels::SLIP_ISA
