// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles of matrix products whose sizes the device knows: in float, and in bfloat16 on tensor cores.
//
// A block computes one tile of C[m, n] (+)= op(A)[m, k] · op(B)[k, n]. Elements outside the matrices count as zero and
// are neither read nor written, so that all sizes are possible. Sums are formed in a fixed order.

#include <cstdint>

#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {

/// The product of a linear layer that a kernel computes, and with it the stored layouts of A and B.
enum class Form {
  forward,  // A [m, k], B [n, k]: rows times weights, transposed
  input,    // A [m, k], B [k, n]: gradients of the results times weights
  weight,   // A [k, m], B [k, n]: gradients of the results, transposed, times rows
};
template <Form kForm>
constexpr bool kLeftTransposed = kForm == Form::weight;
template <Form kForm>
constexpr bool kRightTransposed = kForm == Form::forward;

/// Strides are elements between stored rows.
template <typename A, typename B, typename C>
struct Operands {
  const A* a;
  const B* b;
  C* c;
  int64_t a_stride, b_stride, c_stride;
  int m, n, k;
  bool accumulate;
};

/// c += or = value, rounded once.
template <typename C>
__device__ __forceinline__ void finish(C* c, float value, bool accumulate) {
  *c = from_float<C>(accumulate ? to_float(*c) + value : value);
}

/// Tiles of 64 x 64 in float. A thread has 4 x 4 results.
struct FloatTile {
  static constexpr int kRows = 64, kColumns = 64, kThreads = 256;
  static constexpr int kBlocksAtOnce = 4;              // of a multiprocessor, by registers
  static constexpr int kDepth = 16, kStride = 64 + 4;  // of the tiles in shared memory, [depth, rows or columns]
  static constexpr size_t kSharedBytes = 2 * kDepth * kStride * sizeof(float);

  Shared<float> left, right;
  __device__ explicit FloatTile(unsigned char* bytes)
      : left(bytes, kDepth * kStride), right(bytes + kSharedBytes / 2, kDepth * kStride) {}

  /// Of the four elements that a thread loads, element i. Neighbouring threads have neighbouring addresses.
  static __device__ __forceinline__ int across(bool transposed, int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return transposed ? thread % 64 : thread / 16 + 16 * i;
  }
  static __device__ __forceinline__ int depth(bool transposed, int i) {
    const int thread = static_cast<int>(threadIdx.x);
    return transposed ? thread / 64 + 4 * i : thread % 16;
  }

  template <Form kForm, typename A, typename B, typename C>
  __device__ __forceinline__ void multiply(const Operands<A, B, C>& o, int row, int column) const {
    constexpr bool kDown = kLeftTransposed<kForm>, kAlong = !kRightTransposed<kForm>;
    const int thread = static_cast<int>(threadIdx.x), right_at = thread % 16 * 4, left_at = thread / 16 * 4;
    float sums[4][4] = {};
    for (int begin = 0; begin < o.k; begin += kDepth) {
      float a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = row + across(kDown, i), ka = begin + depth(kDown, i);
        const int c = column + across(kAlong, i), kb = begin + depth(kAlong, i);
        a[i] = r < o.m && ka < o.k ? to_float(kDown ? o.a[ka * o.a_stride + r] : o.a[r * o.a_stride + ka]) : 0.0f;
        b[i] = c < o.n && kb < o.k ? to_float(kAlong ? o.b[kb * o.b_stride + c] : o.b[c * o.b_stride + kb]) : 0.0f;
      }
      __syncthreads();  // all threads have multiplied the tiles before
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        left[depth(kDown, i) * kStride + across(kDown, i)] = a[i];
        right[depth(kAlong, i) * kStride + across(kAlong, i)] = b[i];
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        float of_left[4], of_right[4];
        unpack(ptx::load_16(left.at(k * kStride + left_at)), of_left, 0.0f);
        unpack(ptx::load_16(right.at(k * kStride + right_at)), of_right, 0.0f);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][j] += of_left[i] * of_right[j];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int r = row + left_at + i, c = column + right_at + j;
        if (r < o.m && c < o.n) finish(o.c + r * o.c_stride + c, sums[i][j], o.accumulate);
      }
  }
};

/// Tiles of 64 x 128 in bfloat16. Each of four warps has 32 x 64 results. The operands are in shared memory as they are
/// stored, in rows of chunks of 16 bytes. Chunk c of row r is at place c ^ (r % 8), so that the eight rows of an
/// ldmatrix are in different banks. Copies of the next step run under the products of the current one. With kAligned,
/// all rows begin at 16 bytes and have whole chunks; otherwise chunks are loaded by element.
template <bool kAligned>
struct TensorTile {
  static constexpr int kRows = 64, kColumns = 128, kThreads = 128, kDepth = 64;
  static constexpr int kBlocksAtOnce = 2;  // of a multiprocessor, by registers
  static constexpr int kLeftElems = kRows * kDepth, kStageElems = kLeftElems + kColumns * kDepth;
  static constexpr size_t kSharedBytes = 2 * kStageElems * sizeof(bfloat16);

  Shared<bfloat16> tiles;
  __device__ explicit TensorTile(unsigned char* bytes) : tiles(bytes, 2 * kStageElems) {}

  template <int kWidth>
  static __device__ __forceinline__ int place(int row, int chunk) {
    return row * kWidth + (chunk ^ (row % 8)) * 8;
  }

  /// Starts copying rows [row, row + kTileRows) and columns [column, column + kWidth) of a stored matrix to `at`.
  template <int kTileRows, int kWidth>
  __device__ __forceinline__ void load(int at, const bfloat16* from, int64_t stride, int row, int rows, int column,
                                       int columns) const {
#pragma unroll
    for (int i = 0; i < kTileRows * kWidth / 8; i += kThreads) {
      const int index = i + static_cast<int>(threadIdx.x), r = index / (kWidth / 8), chunk = index % (kWidth / 8);
      const int first = column + 8 * chunk;
      const bfloat16* const source = from + (row + r) * stride + first;
      bfloat16* const to = tiles.at(at + place<kWidth>(r, chunk));
      if (kAligned) {
        const bool valid = row + r < rows && first < columns;
        ptx::copy_async_16(to, valid ? source : from, valid);
      } else {
        float values[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) values[e] = row + r < rows && first + e < columns ? to_float(source[e]) : 0.0f;
        ptx::store_16(to, packed(values, bfloat16{}));
      }
    }
  }

  template <Form kForm, typename C>
  __device__ __forceinline__ void load_step(const Operands<bfloat16, bfloat16, C>& o, int stage, int row, int column,
                                            int begin) const {
    const int at = stage * kStageElems;
    if constexpr (kLeftTransposed<kForm>)
      load<kDepth, kRows>(at, o.a, o.a_stride, begin, o.k, row, o.m);
    else
      load<kRows, kDepth>(at, o.a, o.a_stride, row, o.m, begin, o.k);
    if constexpr (kRightTransposed<kForm>)
      load<kColumns, kDepth>(at + kLeftElems, o.b, o.b_stride, column, o.n, begin, o.k);
    else
      load<kDepth, kColumns>(at + kLeftElems, o.b, o.b_stride, begin, o.k, column, o.n);
    ptx::copy_async_commit();
  }

  template <Form kForm>
  __device__ __forceinline__ void multiply_step(float (&sums)[2][8][4], int stage, int warp_row,
                                                int warp_column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int left_begin = stage * kStageElems, right_begin = left_begin + kLeftElems;
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      uint32_t left[2][4];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const int first = warp_row + 16 * t;
        if constexpr (kLeftTransposed<kForm>)
          ptx::load_matrix_x4_transposed(
              left[t],
              tiles.at(left_begin + place<kRows>(16 * step + lane / 16 * 8 + lane % 8, first / 8 + lane / 8 % 2)));
        else
          ptx::load_matrix_x4(left[t], tiles.at(left_begin + place<kDepth>(first + lane % 16, 2 * step + lane / 16)));
      }
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int first = warp_column + 16 * pair;
        uint32_t right[4];
        if constexpr (kRightTransposed<kForm>)
          ptx::load_matrix_x4(
              right, tiles.at(right_begin + place<kDepth>(first + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2)));
        else
          ptx::load_matrix_x4_transposed(
              right, tiles.at(right_begin + place<kColumns>(16 * step + lane % 16, first / 8 + lane / 16)));
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          ptx::mma_16x8x16(sums[t][2 * pair], left[t], right[0], right[1]);
          ptx::mma_16x8x16(sums[t][2 * pair + 1], left[t], right[2], right[3]);
        }
      }
    }
  }

  template <Form kForm, typename C>
  __device__ __forceinline__ void multiply(const Operands<bfloat16, bfloat16, C>& o, int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const int warp_row = warp / 2 * 32, warp_column = warp % 2 * 64;
    float sums[2][8][4] = {};
    __syncthreads();  // all warps have multiplied the last step of the tile before
    load_step<kForm>(o, 0, row, column, 0);
    for (int begin = 0, stage = 0; begin < o.k; begin += kDepth, stage ^= 1) {
      ptx::copy_async_wait<0>();
      __syncthreads();  // the other stage has been read, too
      if (begin + kDepth < o.k) load_step<kForm>(o, stage ^ 1, row, column, begin + kDepth);
      multiply_step<kForm>(sums, stage, warp_row, warp_column);
    }
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = row + warp_row + 16 * t + lane / 4 + i / 2 * 8;
          const int c = column + warp_column + 8 * j + lane % 4 * 2 + i % 2;
          if (r < o.m && c < o.n) finish(o.c + r * o.c_stride + c, sums[t][j][i], o.accumulate);
        }
  }
};

}  // namespace slipstream::kernels
