// SPDX-License-Identifier: Apache-2.0
// Attention on tensor cores (sm_80 and up): bf16 heads of 64 and 128, weights never leave registers.
//
// A kernel computes one block of keys (block.cuh). In backward the block refers to its arguments; in forward it holds
// them, which saves instructions.
// Source: Dao 2023, arXiv:2307.08691. dq has a separate kernel, so no sum depends on the order of blocks.

#include <type_traits>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/block.cuh"
#include "kernels/attention/mma_tiles.cuh"

namespace slipstream::kernels {
namespace {

/// The keys of a tile that the rows of a warp see.
template <int kTiles, int kKeys>
struct Seen {
  bool causal;
  int last;  // the last one of the warp's first row

  template <typename Block>
  __device__ __forceinline__ Seen(const Block& block, int64_t row, int64_t step)
      : causal(block.causal()), last(static_cast<int>((causal ? row : block.keys() - 1) - step * kKeys)) {}

  __device__ __forceinline__ bool any() const { return !causal || last > -16 * kTiles; }
  __device__ __forceinline__ bool all() const { return last >= kKeys - 1; }
  __device__ __forceinline__ void hide(float (&of_keys)[kTiles][kKeys / 8][4], float value) const {
    const int row = lane_of() / 4, column = 2 * (lane_of() % 4);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (8 * j + column + i % 2 > last + (causal ? 16 * t + row + 8 * (i / 2) : 0)) of_keys[t][j][i] = value;
  }
};

/// Start of the rows from `first` on of a head in [B, H, T].
template <typename Args>
__device__ __forceinline__ int64_t row_of_head(const Args& all, int64_t head, int64_t first) {
  return (blockIdx.z * all.heads + head) * all.tokens + first;
}

/// Position of the queries of a thread block, and the number of steps through the keys that they see.
template <int kHead>
struct QueryRows {
  int64_t begin, head, steps;
  int64_t first_row, kv_offset;  // rows of q and out; elements of k and v
  int64_t of_head;               // of lse and of the carried values

  template <typename Block, typename Args>
  __device__ __forceinline__ QueryRows(const Block& block, const Args& all, int rows, int keys)
      : begin((gridDim.x - 1 - blockIdx.x) * rows),  // the longest rows first, so that short ones fill the end
        head(blockIdx.y),
        steps((block.seen_by(begin, rows) + keys - 1) / keys),
        first_row(blockIdx.z * all.tokens + block.first_query()),
        kv_offset((blockIdx.z * all.tokens + block.first_key()) * all.kv_stride +
                  head / (all.heads / all.kv_heads) * kHead),
        of_head(row_of_head(all, head, block.first_query())) {}
};

/// One block per 64 kTiles queries, kKeys keys at a time.
template <int kHead, int kTiles, int kKeys, bool kWhole>
__global__ void __launch_bounds__(kThreads) forward_kernel(AttentionBlockForward args) {
  SLIP_DYNAMIC_SHARED(bytes);
  const Block<kWhole, AttentionBlockForward> block{args};
  const AttentionForward& all = block.args.all;
  constexpr int kRows = 16 * kTiles * kWarps, kElems = kKeys * kHead;
  const Tile q(bytes, kRows * kHead);
  const auto keys_at = [&](int stage) { return Tile(bytes + 2 * (kRows * kHead + 2 * stage * kElems), kElems); };
  const auto values_at = [&](int stage) {
    return Tile(bytes + 2 * (kRows * kHead + (2 * stage + 1) * kElems), kElems);
  };
  const int of_warp = 16 * kTiles * (static_cast<int>(threadIdx.x) / kWarp), row = lane_of() / 4;
  const QueryRows<kHead> at(block, all, kRows, kKeys);
  const bfloat16* keys = static_cast<const bfloat16*>(all.k) + at.kv_offset;
  const bfloat16* values = static_cast<const bfloat16*>(all.v) + at.kv_offset;
  const auto load_keys = [&](int64_t step) {
    const int stage = static_cast<int>(step % 2);
    load_rows<kKeys, kHead>(keys_at(stage), keys, all.kv_stride, step * kKeys, block.keys());
    load_rows<kKeys, kHead>(values_at(stage), values, all.kv_stride, step * kKeys, block.keys());
  };
  if (at.steps > 0) {  // a last block may have no keys
    load_rows<kRows, kHead>(q, static_cast<const bfloat16*>(all.q) + at.first_row * all.q_stride + at.head * kHead,
                            all.q_stride, at.begin, block.queries());
    load_keys(0);
  }
  ptx::copy_async_commit();
  const float scale = all.scale * kLog2E;
  float out[kTiles][kHead / 8][4] = {}, largest[kTiles][2], sum[kTiles][2];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (!block.first())
      load_sums<kHead>(out[t], args.carried.out + at.of_head * kHead, at.begin + of_warp + 16 * t, block.queries());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t query = at.begin + of_warp + 16 * t + 8 * half + row;
      const bool carries = !block.first() && query < block.queries();
      // Scores are scaled within the exponents; the sum is distributed over the lanes of a row.
      largest[t][half] = carries ? args.carried.maximum[at.of_head + query] / all.scale : -kInfinity;
      sum[t][half] = carries && lane_of() % 4 == 0 ? args.carried.sum[at.of_head + query] : 0.0f;
    }
  }
  for (int64_t step = 0; step < at.steps; ++step) {
    await_stage();
    if (step + 1 < at.steps) load_keys(step + 1);
    ptx::copy_async_commit();
    const int stage = static_cast<int>(step % 2);
    const Seen<kTiles, kKeys> seen(block, at.begin + of_warp, step);
    if (seen.any()) {
      float scores[kTiles][kKeys / 8][4] = {};
      multiply_rows<kKeys, kHead>(scores, q, of_warp, keys_at(stage));
      if (!seen.all()) seen.hide(scores, -kInfinity);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float highest = largest[t][half];
#pragma unroll
          for (int j = 0; j < kKeys / 8; ++j)
            highest = fmaxf(highest, fmaxf(scores[t][j][2 * half], scores[t][j][2 * half + 1]));
          highest = across_row<true>(highest);
          const float keep = ptx::exp2_approx((largest[t][half] - highest) * scale), shift = highest * scale;
          largest[t][half] = highest;
          sum[t][half] *= keep;
#pragma unroll
          for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
              scores[t][j][i] =
                  ptx::exp2_approx(scores[t][j][i] * scale - shift);  // one instruction less than scaled differences
              sum[t][half] += scores[t][j][i];
            }
#pragma unroll
          for (int j = 0; j < kHead / 8; ++j) out[t][j][2 * half] *= keep, out[t][j][2 * half + 1] *= keep;
        }
      multiply_weights<kKeys, kHead>(out, scores, values_at(stage));
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int64_t first = at.begin + of_warp + 16 * t;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[t][half] = across_row<false>(sum[t][half]);
      factor[half] = 1.0f / sum[t][half];
      const int64_t query = first + 8 * half + row;
      if (lane_of() % 4 != 0 || query >= block.queries()) continue;
      if (block.last()) {
        all.lse[at.of_head + query] = largest[t][half] * all.scale + logf(sum[t][half]);
      } else {
        args.carried.maximum[at.of_head + query] = largest[t][half] * all.scale;
        args.carried.sum[at.of_head + query] = sum[t][half];
      }
    }
    if (block.last())
      store_rows<kHead>(static_cast<bfloat16*>(all.out) + at.first_row * all.out_stride + at.head * kHead,
                        all.out_stride, first, block.queries(), out[t], factor);
    else
      store_sums<kHead>(args.carried.out + at.of_head * kHead, kHead, first, block.queries(), out[t], 1.0f);
  }
}

/// One block per 64 kTiles queries, kKeys keys at a time: dq.
template <int kHead, int kTiles, int kKeys, bool kWhole>
__global__ void __launch_bounds__(kThreads) query_kernel(AttentionBlockBackward args, const float* delta) {
  SLIP_DYNAMIC_SHARED(bytes);
  const AttentionBackward& all = args.all;
  const Block<kWhole, const AttentionBlockBackward&> block{args};
  constexpr int kRows = 16 * kTiles * kWarps, kRowElems = kRows * kHead, kElems = kKeys * kHead;
  const Tile q(bytes, kRowElems), d(bytes + 2 * kRowElems, kRowElems);
  const auto keys_at = [&](int stage) { return Tile(bytes + 2 * (2 * kRowElems + 2 * stage * kElems), kElems); };
  const auto values_at = [&](int stage) {
    return Tile(bytes + 2 * (2 * kRowElems + (2 * stage + 1) * kElems), kElems);
  };
  const int of_warp = 16 * kTiles * (static_cast<int>(threadIdx.x) / kWarp), row = lane_of() / 4;
  const QueryRows<kHead> at(block, all, kRows, kKeys);
  const auto load_keys = [&](int64_t step) {
    const int stage = static_cast<int>(step % 2);
    load_rows<kKeys, kHead>(keys_at(stage), static_cast<const bfloat16*>(all.k) + at.kv_offset, all.kv_stride,
                            step * kKeys, block.keys());
    load_rows<kKeys, kHead>(values_at(stage), static_cast<const bfloat16*>(all.v) + at.kv_offset, all.kv_stride,
                            step * kKeys, block.keys());
  };
  if (at.steps > 0) {
    load_rows<kRows, kHead>(q, static_cast<const bfloat16*>(all.q) + at.first_row * all.q_stride + at.head * kHead,
                            all.q_stride, at.begin, block.queries());
    load_rows<kRows, kHead>(d, static_cast<const bfloat16*>(all.dout) + at.first_row * all.out_stride + at.head * kHead,
                            all.out_stride, at.begin, block.queries());
    load_keys(0);
  }
  ptx::copy_async_commit();
  float lse[kTiles][2], slope[kTiles][2], dq[kTiles][kHead / 8][4] = {};
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (!block.first())
      load_sums<kHead>(dq[t], args.dq_sum + at.of_head * kHead, at.begin + of_warp + 16 * t, block.queries());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t query = at.begin + of_warp + 16 * t + 8 * half + row;
      lse[t][half] = query < block.queries() ? all.lse[at.of_head + query] * kLog2E : kInfinity;
      slope[t][half] = query < block.queries() ? delta[at.of_head + query] : 0.0f;
    }
  }
  const float scale = all.scale * kLog2E;
  for (int64_t step = 0; step < at.steps; ++step) {
    await_stage();
    if (step + 1 < at.steps) load_keys(step + 1);
    ptx::copy_async_commit();
    const int stage = static_cast<int>(step % 2);
    const Seen<kTiles, kKeys> seen(block, at.begin + of_warp, step);
    if (seen.any()) {
      float scores[kTiles][kKeys / 8][4] = {}, slopes[kTiles][kKeys / 8][4] = {};
      multiply_rows<kKeys, kHead>(scores, q, of_warp, keys_at(stage));
      multiply_rows<kKeys, kHead>(slopes, d, of_warp, values_at(stage));
      if (!seen.all()) {
        seen.hide(scores, -kInfinity);
        seen.hide(slopes, 0.0f);  // 0 times a value of a hidden key may be NaN
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float weight = ptx::exp2_approx(scores[t][j][i] * scale - lse[t][i / 2]);
            slopes[t][j][i] = weight * (slopes[t][j][i] - slope[t][i / 2]);
          }
      multiply_weights<kKeys, kHead>(dq, slopes, keys_at(stage));
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int64_t first = at.begin + of_warp + 16 * t;
    if (block.last())
      store_rows<kHead>(static_cast<bfloat16*>(all.dq) + at.first_row * all.dq_stride + at.head * kHead, all.dq_stride,
                        first, block.queries(), dq[t], {all.scale, all.scale});
    else
      store_sums<kHead>(args.dq_sum + at.of_head * kHead, kHead, first, block.queries(), dq[t], 1.0f);
  }
}

/// One block per 64 kTiles keys: dk and dv, heads of the group in order. Scores are computed transposed, a warp's keys
/// down and kQueries queries across, so that they are the left side of both sums over queries.
template <int kHead, int kTiles, int kQueries, bool kWhole>
__global__ void __launch_bounds__(kThreads) key_kernel(AttentionBlockBackward args, const float* delta) {
  SLIP_DYNAMIC_SHARED(bytes);
  const AttentionBackward& all = args.all;
  const Block<kWhole, const AttentionBlockBackward&> block{args};
  constexpr int kRows = 16 * kTiles * kWarps, kRowElems = kRows * kHead, kElems = kQueries * kHead;
  const Tile k(bytes, kRowElems), v(bytes + 2 * kRowElems, kRowElems);
  const auto queries_at = [&](int stage) { return Tile(bytes + 2 * (2 * kRowElems + 2 * stage * kElems), kElems); };
  const auto gradients_at = [&](int stage) {
    return Tile(bytes + 2 * (2 * kRowElems + (2 * stage + 1) * kElems), kElems);
  };
  unsigned char* const behind = bytes + 2 * (2 * kRowElems + 4 * kElems);
  const Shared<float> lses(behind, 2 * kQueries), deltas(behind + 8 * kQueries, 2 * kQueries);  // of both stages
  const int thread = static_cast<int>(threadIdx.x), of_warp = 16 * kTiles * (thread / kWarp), row = lane_of() / 4,
            column = 2 * (lane_of() % 4);
  const int64_t key_begin = int64_t{blockIdx.x} * kRows, kv_head = blockIdx.y, group = all.heads / all.kv_heads;
  const int64_t first_row = blockIdx.z * all.tokens + block.first_query(),
                first_key = blockIdx.z * all.tokens + block.first_key();
  const int64_t kv_offset = first_key * all.kv_stride + kv_head * kHead, query_begin = block.causal() ? key_begin : 0;
  // A step is kQueries queries of a head; a counter, because a division would need more registers than there are.
  struct Step {
    int head, begin, stage = 0;
  };
  const auto advance = [&](Step& step) {
    step.stage ^= 1, step.begin += kQueries;
    if (step.begin >= block.queries()) step.begin = static_cast<int>(query_begin), ++step.head;
  };
  const int heads_end = static_cast<int>(kv_head * group + group);
  float next_lse = 0.0f, next_delta = 0.0f;
  const auto load_queries = [&](const Step& step) {
    const auto& [head, begin, stage] = step;
    load_rows<kQueries, kHead>(queries_at(stage),
                               static_cast<const bfloat16*>(all.q) + first_row * all.q_stride + head * kHead,
                               all.q_stride, begin, block.queries());
    load_rows<kQueries, kHead>(gradients_at(stage),
                               static_cast<const bfloat16*>(all.dout) + first_row * all.out_stride + head * kHead,
                               all.out_stride, begin, block.queries());
    if (thread < kQueries) {
      const int64_t index = row_of_head(all, head, block.first_query()) + begin + thread;
      next_lse = begin + thread < block.queries() ? all.lse[index] * kLog2E : kInfinity;
      next_delta = begin + thread < block.queries() ? delta[index] : 0.0f;
    }
  };
  // These stay in registers while the previous step is computed.
  const auto keep_statistics = [&](const Step& step) {
    const int at = step.stage * kQueries + thread;
    if (thread < kQueries) lses[at] = next_lse, deltas[at] = next_delta;
  };
  load_rows<kRows, kHead>(k, static_cast<const bfloat16*>(all.k) + kv_offset, all.kv_stride, key_begin, block.keys());
  load_rows<kRows, kHead>(v, static_cast<const bfloat16*>(all.v) + kv_offset, all.kv_stride, key_begin, block.keys());
  Step step{static_cast<int>(kv_head * group), static_cast<int>(query_begin)}, next = step;
  if (query_begin < block.queries()) {
    load_queries(step);
    keep_statistics(step);
  }
  ptx::copy_async_commit();
  const float scale = all.scale * kLog2E;
  float dk[kTiles][kHead / 8][4] = {}, dv[kTiles][kHead / 8][4] = {};
  for (; step.head < heads_end && step.begin < block.queries(); step = next) {
    await_stage();
    advance(next);
    if (next.head < heads_end) load_queries(next);
    ptx::copy_async_commit();
    const Tile q = queries_at(step.stage), d = gradients_at(step.stage);
    // Distance from the first query to the warp's first key; if all queries see all keys, small enough to hide none.
    const int ahead = block.causal() ? static_cast<int>(key_begin) - step.begin + of_warp : -16 * kTiles;
    if (ahead < kQueries) {
      float weights[kTiles][kQueries / 8][4] = {}, slopes[kTiles][kQueries / 8][4] = {};
      multiply_rows<kQueries, kHead>(weights, k, of_warp, q);
      multiply_rows<kQueries, kHead>(slopes, v, of_warp, d);
      if (ahead > -16 * kTiles) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
#pragma unroll
          for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              if (ahead + 16 * t + row + 8 * (i / 2) > 8 * j + column + i % 2)
                weights[t][j][i] = -kInfinity, slopes[t][j][i] = 0.0f;
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int query = step.stage * kQueries + 8 * j + column + i % 2;
            weights[t][j][i] = ptx::exp2_approx(weights[t][j][i] * scale - lses[query]);
            slopes[t][j][i] = weights[t][j][i] * (slopes[t][j][i] - deltas[query]);
          }
      multiply_weights<kQueries, kHead>(dv, weights, d);
      multiply_weights<kQueries, kHead>(dk, slopes, q);
    }
    if (next.head < heads_end) keep_statistics(next);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int64_t first = key_begin + of_warp + 16 * t;
    if constexpr (kWhole) {
      const int64_t offset = first_key * all.dkv_stride + kv_head * kHead;
      store_rows<kHead>(static_cast<bfloat16*>(all.dk) + offset, all.dkv_stride, first, block.keys(), dk[t],
                        {all.scale, all.scale});
      store_rows<kHead>(static_cast<bfloat16*>(all.dv) + offset, all.dkv_stride, first, block.keys(), dv[t],
                        {1.0f, 1.0f});
    } else {
      const int64_t width = all.kv_heads * kHead;
      float* const to = args.dkv + first_key * 2 * width + kv_head * kHead;
      store_sums<kHead>(to, 2 * width, first, block.keys(), dk[t], all.scale);
      store_sums<kHead>(to + width, 2 * width, first, block.keys(), dv[t], 1.0f);
    }
  }
}

/// Are these rows aligned to 16 bytes and of a head size with kernels?
template <typename Args>
bool fits(const Args& all) {
  return all.window == 0 && all.document_begins == nullptr && all.dropout == nullptr && all.dtype == DType::bf16 &&
         (all.head_dim == 64 || all.head_dim == 128) && all.q_stride % 8 == 0 && all.kv_stride % 8 == 0 &&
         all.out_stride % 8 == 0 && all_aligned(all.q, all.k, all.v, all.out);
}

/// Calls body(std::integral_constant) so that the head size becomes a template argument.
template <typename Body>
void for_head(int64_t head_dim, const Body& body) {
  head_dim == 64 ? body(std::integral_constant<int, 64>{}) : body(std::integral_constant<int, 128>{});
}

/// Number of blocks of kTiles tiles per warp.
template <int kTiles>
dim3 grid_of(int64_t rows, int64_t heads, int64_t batch) {
  return dim3(static_cast<unsigned>(blocks_for(rows, 16 * kTiles * kWarps)), static_cast<unsigned>(heads),
              static_cast<unsigned>(batch));
}

/// Shared memory of this many rows.
constexpr size_t bytes_of_rows(int rows, int head) { return size_t{2} * static_cast<size_t>(rows * head); }

}  // namespace

bool attention_forward_mma(LaunchContext& context, const AttentionBlockForward& args) {
  const AttentionForward& all = args.all;
  if (!fits(all) || !all_aligned(args.carried.out)) return false;
  const bool whole = args.first && args.last && args.block == AttentionBlock{0, all.tokens, 0, all.tokens, true};
  for_head(all.head_dim, [&](auto head) {
    for_flag(whole, [&](auto is_whole) {
      constexpr int kHead = head.value, kTiles = 2, kKeys = kHead == 64 ? 64 : 32;
      launch(stream_of(context), forward_kernel<kHead, kTiles, kKeys, is_whole.value>,
             grid_of<kTiles>(args.block.queries, all.heads, all.batch), dim3(kThreads),
             bytes_of_rows(16 * kTiles * kWarps + 4 * kKeys, kHead), args);
    });
  });
  return true;
}

bool attention_backward_mma(LaunchContext& context, const AttentionBlockBackward& args, const float* delta) {
  const AttentionBackward& all = args.all;
  if (!fits(all) || all.dq_stride % 8 != 0 || !all_aligned(all.dout, all.dq)) return false;
  const bool whole = args.dkv == nullptr;
  if (whole ? all.dkv_stride % 8 != 0 || !all_aligned(all.dk, all.dv) : !all_aligned(args.dq_sum, args.dkv))
    return false;
  for_head(all.head_dim, [&](auto head) {
    for_flag(whole, [&](auto is_whole) {
      constexpr int kHead = head.value;
      constexpr bool kWhole = is_whole.value;
      // For wide heads dk and dv of two tiles need all registers of a thread.
      constexpr int kKeyTiles = kHead == 64 ? 2 : 1, kQueries = 32;
      if (args.block.keys > 0)
        launch(stream_of(context), key_kernel<kHead, kKeyTiles, kQueries, kWhole>,
               grid_of<kKeyTiles>(args.block.keys, all.kv_heads, all.batch), dim3(kThreads),
               bytes_of_rows(2 * 16 * kKeyTiles * kWarps + 4 * kQueries, kHead) + size_t{16} * kQueries, args, delta);
      constexpr int kTiles = kHead == 64 ? 2 : 1, kKeys = 32;
      launch(stream_of(context), query_kernel<kHead, kTiles, kKeys, kWhole>,
             grid_of<kTiles>(args.block.queries, all.heads, all.batch), dim3(kThreads),
             bytes_of_rows(2 * 16 * kTiles * kWarps + 4 * kKeys, kHead), args, delta);
    });
  });
  return true;
}

}  // namespace slipstream::kernels
