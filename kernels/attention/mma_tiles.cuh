// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles of bf16 rows in shared memory, and their products on tensor cores (attention_mma_*.cu).
//
// Rows consist of chunks of 16 bytes. Chunk c of row r is at place c ^ (r % 8), so that the eight rows of an ldmatrix
// are in different banks. In the accumulators of a 16 x n product, lane l with g = l / 4 and c = l % 4 has rows g and g
// + 8 and columns 2c and 2c + 1 of every 8. The next product needs this layout for its left side (mma_16x8x16). A warp
// multiplies kTiles x 16 rows at a time and uses each read of the right side for all of them. With one tile, shared
// memory is the bottleneck; with two it is not.

#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

using Tile = Shared<bfloat16>;

template <int kHead>
__device__ __forceinline__ int place(int row, int chunk) {
  return row * kHead + (chunk ^ (row % 8)) * 8;
}
__device__ __forceinline__ int lane_of() { return static_cast<int>(threadIdx.x) % kWarp; }

/// Starts copying rows [begin, begin + kTileRows) to `tile`, with zeros from `tokens` on. A thread copies one chunk of
/// every kRowsAtOnce-th row. Its place is the same in all of them, because kRowsAtOnce is a multiple of 8.
template <int kTileRows, int kHead>
__device__ __forceinline__ void load_rows(const Tile& tile, const bfloat16* from, int64_t stride, int64_t begin,
                                          int64_t tokens) {
  constexpr int kChunks = kHead / 8, kRowsAtOnce = kThreads / kChunks;
  static_assert(kRowsAtOnce % 8 == 0 && kTileRows % kRowsAtOnce == 0);
  const int thread = static_cast<int>(threadIdx.x), first = thread / kChunks, chunk = thread % kChunks;
  const int at = place<kHead>(first, chunk);
  const bfloat16* source = from + (begin + first) * stride + chunk * 8;
#pragma unroll
  for (int row = 0; row < kTileRows; row += kRowsAtOnce) {
    const bool valid = begin + first + row < tokens;
    ptx::copy_async_16(tile.at(at + row * kHead), valid ? source + row * stride : from, valid);
  }
}

/// Waits for the committed copies of the block. Tiles have two stages. After this barrier all threads have read the
/// stage of the previous step, so later copies may overwrite that stage; the copies for which this barrier waited are
/// in the other one. A step therefore needs no second barrier.
__device__ __forceinline__ void await_stage() {
  ptx::copy_async_wait<0>();
  __syncthreads();
}

/// Columns [16 pair, 16 pair + 16) of every tile's sums += left times the matrices of `right`.
template <int kTiles, int kEights>
__device__ __forceinline__ void multiply(float (&sums)[kTiles][kEights][4], const uint32_t (&left)[kTiles][4],
                                         const uint32_t (&right)[4], int pair) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    ptx::mma_16x8x16(sums[t][2 * pair], left[t], right[0], right[1]);
    ptx::mma_16x8x16(sums[t][2 * pair + 1], left[t], right[2], right[3]);
  }
}

/// sums[t][16 x kColumns] += rows [a_row + 16 t, a_row + 16 t + 16) of a times kColumns rows of b, transposed.
template <int kColumns, int kHead, int kTiles>
__device__ __forceinline__ void multiply_rows(float (&sums)[kTiles][kColumns / 8][4], const Tile& a, int a_row,
                                              const Tile& b) {
  const int lane = lane_of();
#pragma unroll
  for (int step = 0; step < kHead / 16; ++step) {
    uint32_t left[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      ptx::load_matrix_x4(left[t], a.at(place<kHead>(a_row + 16 * t + lane % 16, 2 * step + lane / 16)));
#pragma unroll
    for (int pair = 0; pair < kColumns / 16; ++pair) {
      uint32_t right[4];
      ptx::load_matrix_x4(right, b.at(place<kHead>(16 * pair + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2)));
      multiply(sums, left, right, pair);
    }
  }
}

/// sums[t][16 x kHead] += weights[t][16 x kCount], rounded to bf16, times kCount rows of b.
template <int kCount, int kHead, int kTiles>
__device__ __forceinline__ void multiply_weights(float (&sums)[kTiles][kHead / 8][4],
                                                 const float (&weights)[kTiles][kCount / 8][4], const Tile& b) {
  const int lane = lane_of();
#pragma unroll
  for (int step = 0; step < kCount / 16; ++step) {
    uint32_t left[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&eight)[4] = weights[t][2 * step + i / 2];
        left[t][i] = ptx::bf16_pair(eight[2 * (i % 2)], eight[2 * (i % 2) + 1]);
      }
#pragma unroll
    for (int pair = 0; pair < kHead / 16; ++pair) {
      uint32_t right[4];
      ptx::load_matrix_x4_transposed(right, b.at(place<kHead>(16 * step + lane % 16, 2 * pair + lane / 16)));
      multiply(sums, left, right, pair);
    }
  }
}

/// In every group of four lanes that are kApart apart, words[i] of lane c becomes word c of lane i. Afterwards,
/// neighbours have 16 neighbouring bytes of a row each.
template <int kApart = 1>
__device__ __forceinline__ ptx::Words gathered(const uint32_t (&words)[4]) {
  const int c = lane_of() / kApart % 4;
  ptx::Words whole = {};
#pragma unroll
  for (int turn = 0; turn < 4; ++turn) {
    const int other = c ^ turn;
    uint32_t word = words[0];
#pragma unroll
    for (int i = 1; i < 4; ++i) word = i == other ? words[i] : word;
    word = __shfl_xor_sync(kWholeWarp, word, kApart * turn);
#pragma unroll
    for (int i = 0; i < 4; ++i) whole.word[i] = i == other ? word : whole.word[i];
  }
  return whole;
}

/// Writes factor[half] * sums to rows `begin` + 8 half + l / 4 of `to` that are below `tokens`.
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

/// sums = rows `begin` + 8 half + l / 4 of `from`, with kHead floats each. Unchanged for rows from `rows` on.
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

/// Writes factor * sums to those rows of `to` that are below `rows`.
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

}  // namespace slipstream::kernels
