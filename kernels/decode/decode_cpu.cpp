// SPDX-License-Identifier: Apache-2.0
// The ops of text generation on the CPU: one pass over the weights, or over the keys and values, at the speed of
// memory.

#include <algorithm>
#include <atomic>

#include "kernels/common/vectors.h"
#include "kernels/decode/decode.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

constexpr int kParts = 2;                  // sums of a row, the same for any number of rows
constexpr int64_t kAheadBytes = 4 * 1024;  // of the weights; the hardware prefetches up to the end of a page

/// sums[r] = x[r] . w for kRows rows of x. Weights come from memory, x from the cache.
template <int kRows, typename T>
inline void dot_rows(const float* x, const T* w, int64_t in, float* sums) {
  Vf part[kRows][kParts] = {};
  int64_t i = 0;
  for (; i + kParts * kLanes <= in; i += kParts * kLanes) {
    __builtin_prefetch(reinterpret_cast<const char*>(w + i) + kAheadBytes);
    for (int p = 0; p < kParts; ++p) {
      const Vf weights = load(w + i + p * kLanes);
      for (int r = 0; r < kRows; ++r) part[r][p] += load(x + r * in + i + p * kLanes) * weights;
    }
  }
  for_vectors(i, in, [&](auto lanes, int64_t at) {
    const Vf weights = lanes.load(w + at);
    for (int r = 0; r < kRows; ++r) part[r][0] += lanes.load(x + r * in + at) * weights;
  });
  for (int r = 0; r < kRows; ++r) {
    for (int p = 1; p < kParts; ++p) part[r][0] += part[r][p];
    sums[r] = sum(part[r][0]);
  }
}

template <int kRows, typename T>
void product(LaunchContext& context, const FewRowsProduct& args, int64_t row) {
  context.parallel_for(args.out, 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      float sums[kRows];
      dot_rows<kRows>(args.x + row * args.in, static_cast<const T*>(args.weight) + o * args.in, args.in, sums);
      const float bias = args.bias ? args.bias[o] : 0.0f;
      for (int r = 0; r < kRows; ++r) args.y[(row + r) * args.out + o] = sums[r] + bias;
    }
  });
}

template <typename T>
void products(LaunchContext& context, const FewRowsProduct& args) {
  switch (args.rows) {
    case 1:
      return product<1, T>(context, args, 0);
    case 2:
      return product<2, T>(context, args, 0);
    case 3:
      return product<3, T>(context, args, 0);
    case 4:
      return product<4, T>(context, args, 0);
    case 5:
      return product<5, T>(context, args, 0);
    case 6:
      return product<6, T>(context, args, 0);
    case 7:
      return product<7, T>(context, args, 0);
    default:
      return product<8, T>(context, args, 0);
  }
}

/// All heads that share a key-value head; its keys and values are read once each.
void attend(const OneTokenAttention& args, int64_t kv_head) {
  const int64_t size = args.head_dim, group = args.heads / args.kv_heads, first = kv_head * group;
  const float* const k = args.k + kv_head * size;
  const float* const v = args.v + kv_head * size;
  for (int64_t s = 0; s < args.keys; ++s)
    for (int64_t h = first; h < first + group; ++h) {
      Vf dot = {};
      for_vectors(0, size, [&](auto lanes, int64_t i) {
        dot += lanes.load(args.q + h * size + i) * lanes.load(k + s * args.kv_stride + i);
      });
      args.scores[h * args.keys + s] = args.scale * sum(dot);
    }
  for (int64_t h = first; h < first + group; ++h) {
    float* const scores = args.scores + h * args.keys;
    const float highest = *std::max_element(scores, scores + args.keys);
    Vf total = {};
    for_vectors(0, args.keys, [&](auto lanes, int64_t i) {
      const Vf weight = exp_bounded(lanes.load(scores + i) - highest);
      lanes.store(scores + i, weight);
      total += lanes.keep(weight);
    });
    const float factor = 1.0f / sum(total);
    for_vectors(0, args.keys, [&](auto lanes, int64_t i) { lanes.store(scores + i, lanes.load(scores + i) * factor); });
    std::fill_n(args.out + h * size, size, 0.0f);
  }
  for (int64_t s = 0; s < args.keys; ++s)
    for (int64_t h = first; h < first + group; ++h) {
      const float weight = args.scores[h * args.keys + s];
      for_vectors(0, size, [&](auto lanes, int64_t i) {
        lanes.store(args.out + h * size + i,
                    lanes.load(args.out + h * size + i) + lanes.load(v + s * args.kv_stride + i) * weight);
      });
    }
}

}  // namespace

void few_rows_product_cpu(LaunchContext& context, const FewRowsProduct& args) {
  if (args.dtype == DType::f32) return products<float>(context, args);
  products<bfloat16>(context, args);
}

void read_all_cpu(LaunchContext& context, const ReadAll& args) {
  constexpr int64_t kVectors = 8, kStep = kVectors * kLanes;
  std::atomic<double> total{0};
  context.parallel_for(args.elems / kStep, 1024, [&](int64_t begin, int64_t end) {
    Vf sums[kVectors] = {};
    for (int64_t i = begin; i < end; ++i) {
      __builtin_prefetch(reinterpret_cast<const char*>(args.at + i * kStep) + kAheadBytes);
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) sums[v] += load(args.at + i * kStep + v * kLanes);
    }
    double part = 0;
    for (const Vf& vector : sums) part += static_cast<double>(sum(vector));
    total += part;
  });
  for (int64_t i = args.elems / kStep * kStep; i < args.elems; ++i) total += static_cast<double>(args.at[i]);
  *args.sum = total;
}

void one_token_attention_cpu(LaunchContext& context, const OneTokenAttention& args) {
  context.parallel_for(args.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t kv_head = begin; kv_head < end; ++kv_head) attend(args, kv_head);
  });
}

}  // namespace slipstream::kernels::SLIP_ISA
