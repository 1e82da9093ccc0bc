// SPDX-License-Identifier: Apache-2.0
// Attention on tensor cores (sm_80 and up): bf16 heads of 64 and 128, 16 rows a warp, weights never leave registers.
//
// Tiles of rows lie in shared memory in chunks of 16 bytes, chunk c of row r at place c ^ (r % 8), so that the eight
// rows of an ldmatrix lie in different banks. In the accumulators of a 16 x n product, lane l with g = l / 4 and c = l
// % 4 has rows g and g + 8 and columns 2c and 2c + 1 of every 8: the layout that the next product wants of its left
// side (mma_16x8x16).
// A kernel computes a block of keys (attention.h). With kWhole the block is all of causal attention, known when the
// kernel is compiled: it has no registers to spare for what other blocks carry.
// Source: Dao 2023, arXiv:2307.08691. dq is a kernel of its own, so nothing is added in an order that could change.

#include <type_traits>

#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {
namespace {

constexpr int kRows = 64;  // of a block: 16 a warp
constexpr int kWarps = kRows / 16;
constexpr int kThreads = kWarps * kWarp;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kInfinity = __builtin_inff();

using Tile = Shared<bfloat16>;

template <int kHead>
__device__ __forceinline__ int place(int row, int chunk) {
  return row * kHead + (chunk ^ (row % 8)) * 8;
}
__device__ __forceinline__ int lane_of() { return static_cast<int>(threadIdx.x) % kWarp; }

/// Starts copying rows [begin, begin + kTileRows) to `tile`, zeros from `tokens` on.
template <int kTileRows, int kHead>
__device__ __forceinline__ void load_rows(const Tile& tile, const bfloat16* from, int64_t stride, int64_t begin,
                                          int64_t tokens) {
  constexpr int kChunks = kHead / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool valid = begin + row < tokens;
    ptx::copy_async_16(tile.at(place<kHead>(row, chunk)), valid ? from + (begin + row) * stride + chunk * 8 : from,
                       valid);
  }
}

/// sums[16 x kColumns] += rows [a_row, a_row + 16) of a times kColumns rows of b, transposed.
template <int kColumns, int kHead>
__device__ __forceinline__ void multiply_rows(float (&sums)[kColumns / 8][4], const Tile& a, int a_row, const Tile& b) {
  const int lane = lane_of();
#pragma unroll
  for (int step = 0; step < kHead / 16; ++step) {
    uint32_t left[4];
    ptx::load_matrix_x4(left, a.at(place<kHead>(a_row + lane % 16, 2 * step + lane / 16)));
#pragma unroll
    for (int pair = 0; pair < kColumns / 16; ++pair) {
      uint32_t right[4];
      ptx::load_matrix_x4(right, b.at(place<kHead>(16 * pair + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2)));
      ptx::mma_16x8x16(sums[2 * pair], left, right[0], right[1]);
      ptx::mma_16x8x16(sums[2 * pair + 1], left, right[2], right[3]);
    }
  }
}

/// sums[16 x kHead] += weights[16 x kCount], rounded to bf16, times kCount rows of b.
template <int kCount, int kHead>
__device__ __forceinline__ void multiply_weights(float (&sums)[kHead / 8][4], const float (&weights)[kCount / 8][4],
                                                 const Tile& b) {
  const int lane = lane_of();
#pragma unroll
  for (int step = 0; step < kCount / 16; ++step) {
    const float(&low)[4] = weights[2 * step];
    const float(&high)[4] = weights[2 * step + 1];
    const uint32_t left[4] = {ptx::bf16_pair(low[0], low[1]), ptx::bf16_pair(low[2], low[3]),
                              ptx::bf16_pair(high[0], high[1]), ptx::bf16_pair(high[2], high[3])};
#pragma unroll
    for (int pair = 0; pair < kHead / 16; ++pair) {
      uint32_t right[4];
      ptx::load_matrix_x4_transposed(right, b.at(place<kHead>(16 * step + lane % 16, 2 * pair + lane / 16)));
      ptx::mma_16x8x16(sums[2 * pair], left, right[0], right[1]);
      ptx::mma_16x8x16(sums[2 * pair + 1], left, right[2], right[3]);
    }
  }
}

/// Of lane c of every four, words[i] goes to word c of lane i: afterwards a lane has 16 neighbouring bytes of a row.
__device__ __forceinline__ ptx::Words gathered(const uint32_t (&words)[4]) {
  const int c = lane_of() % 4;
  ptx::Words whole = {};
#pragma unroll
  for (int turn = 0; turn < 4; ++turn) {
    const int other = c ^ turn;
    uint32_t word = words[0];
#pragma unroll
    for (int i = 1; i < 4; ++i) word = i == other ? words[i] : word;
    word = __shfl_xor_sync(kWholeWarp, word, turn);
#pragma unroll
    for (int i = 0; i < 4; ++i) whole.word[i] = i == other ? word : whole.word[i];
  }
  return whole;
}

/// Writes factor[half] * sums to rows `begin` + 8 half + l / 4 of `to`, as far as they are below `tokens`.
template <int kHead>
__device__ __forceinline__ void store_rows(bfloat16* to, int64_t stride, int64_t begin, int64_t tokens,
                                           const float (&sums)[kHead / 8][4], const float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = begin + 8 * half + lane_of() / 4;
#pragma unroll
    for (int j = 0; j < kHead / 8; j += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = ptx::bf16_pair(factor[half] * sums[j + i][2 * half], factor[half] * sums[j + i][2 * half + 1]);
      const ptx::Words whole = gathered(words);
      if (row < tokens) ptx::store_16(to + row * stride + 8 * (j + lane_of() % 4), whole);
    }
  }
}

/// sums = rows `begin` + 8 half + l / 4 of `from`, kHead floats each; as they are for rows from `rows` on.
template <int kHead>
__device__ __forceinline__ void load_sums(float (&sums)[kHead / 8][4], const float* from, int64_t begin, int64_t rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = begin + 8 * half + lane_of() / 4;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j)
      ptx::load_pair(from + row * kHead + 8 * j + 2 * (lane_of() % 4), sums[j][2 * half], sums[j][2 * half + 1]);
  }
}

/// Writes factor * sums to such rows of `to`, as far as they are below `rows`.
template <int kHead>
__device__ __forceinline__ void store_sums(float* to, int64_t stride, int64_t begin, int64_t rows,
                                           const float (&sums)[kHead / 8][4], float factor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = begin + 8 * half + lane_of() / 4;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j)
      ptx::store_pair(to + row * stride + 8 * j + 2 * (lane_of() % 4), factor * sums[j][2 * half],
                      factor * sums[j][2 * half + 1]);
  }
}

/// The sum, or with kMax the maximum, over the four lanes that share a row.
template <bool kMax>
__device__ __forceinline__ float across_row(float value) {
#pragma unroll
  for (int bits = 1; bits < 4; bits *= 2) {
    const float other = __shfl_xor_sync(kWholeWarp, value, bits);
    value = kMax ? fmaxf(value, other) : value + other;
  }
  return value;
}

/// What a kernel computes. In backward `Args` is a reference, so that fields are read from the parameters where they
/// are used: as values, which save instructions in forward, the compiler holds them over loops in registers that it
/// spills.
template <bool kWhole, typename Args>
struct Block {
  Args args;

  __device__ __forceinline__ int64_t first_query() const { return kWhole ? 0 : args.block.first_query; }
  __device__ __forceinline__ int64_t queries() const { return kWhole ? args.all.tokens : args.block.queries; }
  __device__ __forceinline__ int64_t first_key() const { return kWhole ? 0 : args.block.first_key; }
  __device__ __forceinline__ int64_t keys() const { return kWhole ? args.all.tokens : args.block.keys; }
  __device__ __forceinline__ bool causal() const { return kWhole || args.block.causal; }
  __device__ __forceinline__ bool first() const { return kWhole || args.first; }
  __device__ __forceinline__ bool last() const { return kWhole || args.last; }

  /// The last tile of keys that a tile of queries sees; -1 of no keys.
  __device__ __forceinline__ int64_t last_tile(int64_t query_tile) const {
    return causal() ? query_tile : (keys() + kRows - 1) / kRows - 1;
  }
  /// The last key of this tile that row `row` of the queries sees.
  __device__ __forceinline__ int last_key(int row) const {
    return causal() ? row : static_cast<int>((keys() - 1) % kRows);
  }
};

/// Where the rows from `first` on of a head begin in [B, H, T].
template <typename Args>
__device__ __forceinline__ int64_t row_of_head(const Args& all, int64_t head, int64_t first) {
  return (blockIdx.z * all.heads + head) * all.tokens + first;
}

template <int kHead, bool kWhole>
__global__ void __launch_bounds__(kThreads) forward_kernel(AttentionBlockForward args) {
  SLIP_DYNAMIC_SHARED(bytes);
  const Block<kWhole, AttentionBlockForward> block{args};
  const AttentionForward& all = block.args.all;
  constexpr int kElems = kRows * kHead, kTileBytes = 2 * kElems;
  const Tile q(bytes, kElems);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, row = lane_of() / 4, column = 2 * (lane_of() % 4);
  // The longest rows first: the short ones fill the end.
  const int64_t tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, last_tile = block.last_tile(tile);
  const int64_t begin = tile * kRows, first_row = blockIdx.z * all.tokens + block.first_query(),
                first_key = blockIdx.z * all.tokens + block.first_key();
  const int64_t kv_offset = first_key * all.kv_stride + head / (all.heads / all.kv_heads) * kHead,
                of_head = row_of_head(all, head, block.first_query());
  const bfloat16* keys = static_cast<const bfloat16*>(all.k) + kv_offset;
  const bfloat16* values = static_cast<const bfloat16*>(all.v) + kv_offset;
  const auto load_keys = [&](int64_t at) {
    const int stage = static_cast<int>(at % 2);
    load_rows<kRows, kHead>(Tile(bytes + (1 + 2 * stage) * kTileBytes, kElems), keys, all.kv_stride, at * kRows,
                            block.keys());
    load_rows<kRows, kHead>(Tile(bytes + (2 + 2 * stage) * kTileBytes, kElems), values, all.kv_stride, at * kRows,
                            block.keys());
  };
  if (last_tile >= 0) {  // a last block may have no keys
    load_rows<kRows, kHead>(q, static_cast<const bfloat16*>(all.q) + first_row * all.q_stride + head * kHead,
                            all.q_stride, begin, block.queries());
    load_keys(0);
  }
  ptx::copy_async_commit();
  const float scale = all.scale * kLog2E;
  float out[kHead / 8][4] = {}, largest[2] = {-kInfinity, -kInfinity}, sum[2] = {};
  if (!block.first()) {
    load_sums<kHead>(out, args.carried.out + of_head * kHead, begin + 16 * warp, block.queries());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t query = begin + 16 * warp + 8 * half + row;
      if (query >= block.queries()) continue;
      largest[half] = args.carried.maximum[of_head + query] / all.scale;  // scores are scaled within the exponents
      if (column == 0) sum[half] = args.carried.sum[of_head + query];     // it is spread over the lanes of a row
    }
  }
  for (int64_t at = 0; at <= last_tile; ++at) {
    if (at < last_tile) load_keys(at + 1);
    ptx::copy_async_commit();
    ptx::copy_async_wait<1>();
    __syncthreads();
    const int stage = static_cast<int>(at % 2);
    const Tile k(bytes + (1 + 2 * stage) * kTileBytes, kElems), v(bytes + (2 + 2 * stage) * kTileBytes, kElems);
    float scores[kRows / 8][4] = {};
    multiply_rows<kRows, kHead>(scores, q, 16 * warp, k);
    if (at == last_tile) {
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (8 * j + column + i % 2 > block.last_key(16 * warp + row + 8 * (i / 2))) scores[j][i] = -kInfinity;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = largest[half];
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) highest = fmaxf(highest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      highest = across_row<true>(highest);
      const float keep = ptx::exp2_approx((largest[half] - highest) * scale);
      largest[half] = highest;
      sum[half] *= keep;
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[j][i] = ptx::exp2_approx((scores[j][i] - highest) * scale);
          sum[half] += scores[j][i];
        }
#pragma unroll
      for (int j = 0; j < kHead / 8; ++j) out[j][2 * half] *= keep, out[j][2 * half + 1] *= keep;
    }
    multiply_weights<kRows, kHead>(out, scores, v);
    __syncthreads();  // the next copies overwrite this stage
  }
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] = across_row<false>(sum[half]);
    factor[half] = 1.0f / sum[half];
    const int64_t query = begin + 16 * warp + 8 * half + row;
    if (column != 0 || query >= block.queries()) continue;
    if (block.last()) {
      all.lse[of_head + query] = largest[half] * all.scale + logf(sum[half]);
    } else {
      args.carried.maximum[of_head + query] = largest[half] * all.scale;
      args.carried.sum[of_head + query] = sum[half];
    }
  }
  if (block.last())
    store_rows<kHead>(static_cast<bfloat16*>(all.out) + first_row * all.out_stride + head * kHead, all.out_stride,
                      begin + 16 * warp, block.queries(), out, factor);
  else
    store_sums<kHead>(args.carried.out + of_head * kHead, kHead, begin + 16 * warp, block.queries(), out, 1.0f);
}

/// A block per 64 queries: dq.
template <int kHead, bool kWhole>
__global__ void __launch_bounds__(kThreads) query_kernel(AttentionBlockBackward args, const float* delta) {
  SLIP_DYNAMIC_SHARED(bytes);
  const AttentionBackward& all = args.all;
  const Block<kWhole, const AttentionBlockBackward&> block{args};
  constexpr int kElems = kRows * kHead, kTileBytes = 2 * kElems;
  const Tile q(bytes, kElems), d(bytes + kTileBytes, kElems);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, row = lane_of() / 4, column = 2 * (lane_of() % 4);
  const int64_t tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, last_tile = block.last_tile(tile);
  const int64_t begin = tile * kRows, first_row = blockIdx.z * all.tokens + block.first_query(),
                first_key = blockIdx.z * all.tokens + block.first_key();
  const int64_t kv_offset = first_key * all.kv_stride + head / (all.heads / all.kv_heads) * kHead,
                of_head = row_of_head(all, head, block.first_query());
  const auto load_keys = [&](int64_t at) {
    const int stage = static_cast<int>(at % 2);
    load_rows<kRows, kHead>(Tile(bytes + (2 + 2 * stage) * kTileBytes, kElems),
                            static_cast<const bfloat16*>(all.k) + kv_offset, all.kv_stride, at * kRows, block.keys());
    load_rows<kRows, kHead>(Tile(bytes + (3 + 2 * stage) * kTileBytes, kElems),
                            static_cast<const bfloat16*>(all.v) + kv_offset, all.kv_stride, at * kRows, block.keys());
  };
  if (last_tile >= 0) {
    load_rows<kRows, kHead>(q, static_cast<const bfloat16*>(all.q) + first_row * all.q_stride + head * kHead,
                            all.q_stride, begin, block.queries());
    load_rows<kRows, kHead>(d, static_cast<const bfloat16*>(all.dout) + first_row * all.out_stride + head * kHead,
                            all.out_stride, begin, block.queries());
    load_keys(0);
  }
  ptx::copy_async_commit();
  float lse[2], slope[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t query = begin + 16 * warp + 8 * half + row;
    lse[half] = query < block.queries() ? all.lse[of_head + query] * kLog2E : kInfinity;
    slope[half] = query < block.queries() ? delta[of_head + query] : 0.0f;
  }
  const float scale = all.scale * kLog2E;
  float dq[kHead / 8][4] = {};
  if (!block.first()) load_sums<kHead>(dq, args.dq_sum + of_head * kHead, begin + 16 * warp, block.queries());
  for (int64_t at = 0; at <= last_tile; ++at) {
    if (at < last_tile) load_keys(at + 1);
    ptx::copy_async_commit();
    ptx::copy_async_wait<1>();
    __syncthreads();
    const int stage = static_cast<int>(at % 2);
    const Tile k(bytes + (2 + 2 * stage) * kTileBytes, kElems), v(bytes + (3 + 2 * stage) * kTileBytes, kElems);
    float scores[kRows / 8][4] = {}, slopes[kRows / 8][4] = {};
    multiply_rows<kRows, kHead>(scores, q, 16 * warp, k);
    multiply_rows<kRows, kHead>(slopes, d, 16 * warp, v);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool hidden = at == last_tile && 8 * j + column + i % 2 > block.last_key(16 * warp + row + 8 * (i / 2));
        const float weight = hidden ? 0.0f : ptx::exp2_approx(scores[j][i] * scale - lse[i / 2]);
        slopes[j][i] = hidden ? 0.0f : weight * (slopes[j][i] - slope[i / 2]);
      }
    multiply_weights<kRows, kHead>(dq, slopes, k);
    __syncthreads();  // the next copies overwrite this stage
  }
  if (block.last())
    store_rows<kHead>(static_cast<bfloat16*>(all.dq) + first_row * all.dq_stride + head * kHead, all.dq_stride,
                      begin + 16 * warp, block.queries(), dq, {all.scale, all.scale});
  else
    store_sums<kHead>(args.dq_sum + of_head * kHead, kHead, begin + 16 * warp, block.queries(), dq, 1.0f);
}

/// A block per 64 keys: dk and dv, heads of the group in order. Scores are made transposed, a warp's keys down and
/// kQueries queries across, so that they are the left side of both sums over queries.
template <int kHead, int kQueries, bool kWhole>
__global__ void __launch_bounds__(kThreads) key_kernel(AttentionBlockBackward args, const float* delta) {
  SLIP_DYNAMIC_SHARED(bytes);
  const AttentionBackward& all = args.all;
  const Block<kWhole, const AttentionBlockBackward&> block{args};
  constexpr int kElems = kRows * kHead, kTileBytes = 2 * kElems, kQueryElems = kQueries * kHead,
                kQueryBytes = 2 * kQueryElems;
  const Tile k(bytes, kElems), v(bytes + kTileBytes, kElems);
  const auto queries_at = [&](int stage) {
    return Tile(bytes + 2 * kTileBytes + 2 * stage * kQueryBytes, kQueryElems);
  };
  const auto gradients_at = [&](int stage) {
    return Tile(bytes + 2 * kTileBytes + (2 * stage + 1) * kQueryBytes, kQueryElems);
  };
  unsigned char* const behind = bytes + 2 * kTileBytes + 4 * kQueryBytes;
  const Shared<float> lses(behind, 2 * kQueries), deltas(behind + 8 * kQueries, 2 * kQueries);  // of both stages
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, row = lane_of() / 4,
            column = 2 * (lane_of() % 4);
  const int64_t key_begin = int64_t{blockIdx.x} * kRows, kv_head = blockIdx.y, group = all.heads / all.kv_heads;
  const int64_t first_row = blockIdx.z * all.tokens + block.first_query(),
                first_key = blockIdx.z * all.tokens + block.first_key();
  const int64_t kv_offset = first_key * all.kv_stride + kv_head * kHead, query_begin = block.causal() ? key_begin : 0;
  const int64_t per_head = (block.queries() - query_begin + kQueries - 1) / kQueries, steps = group * per_head;
  const auto begin_of = [&](int64_t step) { return query_begin + step % per_head * kQueries; };
  float next_lse = 0.0f, next_delta = 0.0f;
  const auto load_queries = [&](int64_t step) {
    const int stage = static_cast<int>(step % 2);
    const int64_t head = kv_head * group + step / per_head, begin = begin_of(step);
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
  // These wait in registers while the step before is computed.
  const auto keep_statistics = [&](int64_t step) {
    const int at = static_cast<int>(step % 2) * kQueries + thread;
    if (thread < kQueries) lses[at] = next_lse, deltas[at] = next_delta;
  };
  load_rows<kRows, kHead>(k, static_cast<const bfloat16*>(all.k) + kv_offset, all.kv_stride, key_begin, block.keys());
  load_rows<kRows, kHead>(v, static_cast<const bfloat16*>(all.v) + kv_offset, all.kv_stride, key_begin, block.keys());
  load_queries(0);
  keep_statistics(0);
  ptx::copy_async_commit();
  const float scale = all.scale * kLog2E;
  float dk[kHead / 8][4] = {}, dv[kHead / 8][4] = {};
  for (int64_t step = 0; step < steps; ++step) {
    if (step + 1 < steps) load_queries(step + 1);
    ptx::copy_async_commit();
    ptx::copy_async_wait<1>();
    __syncthreads();
    const int stage = static_cast<int>(step % 2);
    const int64_t begin = begin_of(step);
    const Tile q = queries_at(stage), d = gradients_at(stage);
    // By how much the first key is later than the first query; where all see all, by less than could hide one.
    const int ahead = block.causal() ? static_cast<int>(key_begin - begin) : -kRows;
    float weights[kQueries / 8][4] = {}, slopes[kQueries / 8][4] = {};
    multiply_rows<kQueries, kHead>(weights, k, 16 * warp, q);
    multiply_rows<kQueries, kHead>(slopes, v, 16 * warp, d);
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = 8 * j + column + i % 2;
        const bool hidden = ahead + 16 * warp + row + 8 * (i / 2) > query;
        weights[j][i] = hidden ? 0.0f : ptx::exp2_approx(weights[j][i] * scale - lses[stage * kQueries + query]);
        slopes[j][i] = hidden ? 0.0f : weights[j][i] * (slopes[j][i] - deltas[stage * kQueries + query]);
      }
    multiply_weights<kQueries, kHead>(dv, weights, d);
    multiply_weights<kQueries, kHead>(dk, slopes, q);
    if (step + 1 < steps) keep_statistics(step + 1);
    __syncthreads();  // the next copies overwrite this stage
  }
  if constexpr (kWhole) {
    const int64_t offset = first_key * all.dkv_stride + kv_head * kHead;
    store_rows<kHead>(static_cast<bfloat16*>(all.dk) + offset, all.dkv_stride, key_begin + 16 * warp, block.keys(), dk,
                      {all.scale, all.scale});
    store_rows<kHead>(static_cast<bfloat16*>(all.dv) + offset, all.dkv_stride, key_begin + 16 * warp, block.keys(), dv,
                      {1.0f, 1.0f});
  } else {
    const int64_t width = all.kv_heads * kHead;
    float* const to = args.dkv + first_key * 2 * width + kv_head * kHead;
    store_sums<kHead>(to, 2 * width, key_begin + 16 * warp, block.keys(), dk, all.scale);
    store_sums<kHead>(to + width, 2 * width, key_begin + 16 * warp, block.keys(), dv, 1.0f);
  }
}

/// Are these rows of whole 16 bytes for which there are kernels?
template <typename Args>
bool fits(const Args& all) {
  return all.dtype == DType::bf16 && (all.head_dim == 64 || all.head_dim == 128) && all.q_stride % 8 == 0 &&
         all.kv_stride % 8 == 0 && all.out_stride % 8 == 0 && all_aligned(all.q, all.k, all.v, all.out);
}

/// Calls body(std::integral_constant) so that the head size becomes a template argument.
template <typename Body>
void for_head(int64_t head_dim, const Body& body) {
  head_dim == 64 ? body(std::integral_constant<int, 64>{}) : body(std::integral_constant<int, 128>{});
}

dim3 grid_of(int64_t rows, int64_t heads, int64_t batch) {
  return dim3(static_cast<unsigned>(blocks_for(rows, kRows)), static_cast<unsigned>(heads),
              static_cast<unsigned>(batch));
}

}  // namespace

bool attention_forward_mma(LaunchContext& context, const AttentionBlockForward& args) {
  const AttentionForward& all = args.all;
  if (!fits(all) || !all_aligned(args.carried.out)) return false;
  const bool whole = args.first && args.last && args.block == AttentionBlock{0, all.tokens, 0, all.tokens, true};
  for_head(all.head_dim, [&](auto head) {
    for_flag(whole, [&](auto is_whole) {
      constexpr size_t kTileBytes = size_t{2} * kRows * head.value;
      launch(stream_of(context), forward_kernel<head.value, is_whole.value>,
             grid_of(args.block.queries, all.heads, all.batch), dim3(kThreads), 5 * kTileBytes, args);
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
      constexpr size_t kTileBytes = size_t{2} * kRows * kHead;
      // Wide heads take half of the queries: dk and dv fill half of the registers.
      constexpr int kQueries = kHead == 64 ? 64 : 32;
      if (args.block.keys > 0)
        launch(stream_of(context), key_kernel<kHead, kQueries, is_whole.value>,
               grid_of(args.block.keys, all.kv_heads, all.batch), dim3(kThreads),
               2 * kTileBytes + 2 * (size_t{4} * kQueries * kHead + size_t{8} * kQueries), args, delta);
      launch(stream_of(context), query_kernel<kHead, is_whole.value>, grid_of(args.block.queries, all.heads, all.batch),
             dim3(kThreads), 6 * kTileBytes, args, delta);
    });
  });
  return true;
}

}  // namespace slipstream::kernels
