// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms of all other rows: one warp per row, which is read again, usually from L1.

#include "kernels/cuda/norm_types.cuh"

namespace slipstream::kernels {

/// Calls body(column, elements left) for this lane's packs of a row.
template <typename T, typename Body>
__device__ __forceinline__ void for_packs(int64_t width, const Body& body) {
  for (int64_t column = threadIdx.x % kWarp * kPack<T>; column < width; column += kWarp * kPack<T>)
    body(column, width - column);
}

template <bool kCentre, bool kAligned, typename T>
__global__ void __launch_bounds__(kNormWarps* kWarp) wide_norm_forward_kernel(NormForward<T> args) {
  ptx::after_earlier_kernels();
  const int64_t row = int64_t{blockIdx.x} * kNormWarps + threadIdx.x / kWarp;
  if (row >= args.rows) return;  // the whole warp
  const int64_t begin = row * args.width;
  const float share = 1.0f / static_cast<float>(args.width);
  const T* s = args.delta ? args.sum : args.x;
  float total = 0.0f, squares = 0.0f;
  for_packs<T>(args.width, [&](int64_t column, int64_t left) {
    float v[kPack<T>];
    load_floats<kAligned>(args.x + begin + column, left, v);
    if (args.delta) {
      float d[kPack<T>];
      load_floats<kAligned>(args.delta + begin + column, left, d);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) v[i] = rounded<T>(v[i] + d[i]);
      store_floats<kAligned>(args.sum + begin + column, left, v);
    }
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) total += v[i], squares += v[i] * v[i];
  });
  float mean = 0.0f;
  if constexpr (kCentre) {
    mean = warp_sum(total) * share;
    squares = 0.0f;
    for_packs<T>(args.width, [&](int64_t column, int64_t left) {
      float v[kPack<T>];
      load_floats<kAligned>(s + begin + column, left, v);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) squares += i < left ? (v[i] - mean) * (v[i] - mean) : 0.0f;
    });
  }
  const float inv = 1.0f / sqrtf(warp_sum(squares) * share + args.eps);
  for_packs<T>(args.width, [&](int64_t column, int64_t left) {
    float v[kPack<T>], w[kPack<T>], b[kPack<T>] = {};
    load_floats<kAligned>(s + begin + column, left, v);
    load_floats<kAligned>(args.weight + column, left, w);
    if constexpr (kCentre) load_floats<kAligned>(args.bias + column, left, b);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const float n = (v[i] - mean) * inv;
      v[i] = kCentre ? n * w[i] + b[i] : rounded<T>(n) * w[i];
    }
    store_floats<kAligned>(args.y + begin + column, left, v);
  });
  if (threadIdx.x % kWarp > 0) return;
  if constexpr (kCentre) args.mean[row] = mean;
  args.inv[row] = inv;
}

/// The place where a warp adds the sums of its rows: its part of shared memory, or of the partial sums if a row is too
/// wide for shared memory.
template <bool kShared>
struct NormAdder {
  Shared<float> shared;
  float* global;

  __device__ __forceinline__ void set(int64_t at, float value) const {
    if constexpr (kShared)
      shared[static_cast<int>(at)] = value;
    else
      global[at] = value;
  }
  __device__ __forceinline__ float get(int64_t at) const {
    if constexpr (kShared)
      return shared[static_cast<int>(at)];
    else
      return global[at];
  }
};

/// A block processes `rows_per_block` rows, and its warps take turns: each computes dx, and its sums row after row,
/// with each lane on its own packs. At the end the sums of the warps are added in order and stored in partial[block].
template <bool kCentre, bool kShared, bool kAligned, typename T>
__global__ void __launch_bounds__(kNormWarps* kWarp)
    wide_norm_backward_kernel(NormBackward<T> args, int64_t rows_per_block, float* all_partial) {
  ptx::after_earlier_kernels();
  SLIP_DYNAMIC_SHARED(bytes);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  const NormSums<kCentre, T> layout(args);
  const int64_t floats = layout.floats(), of_weight = layout.of_weight();
  float* const partial = all_partial + blockIdx.x * floats;
  const NormAdder<kShared> sums = {Shared<float>(bytes, kShared ? static_cast<int>(warps * floats) : 0), partial};
  const int64_t mine = kShared ? warp * floats : 0;  // without shared memory a block is one warp
  for_packs<T>(args.width, [&](int64_t column, int64_t) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const int64_t at = mine + i * layout.packs + column / kPack<T>;
      sums.set(at, 0.0f);
      if constexpr (kCentre) sums.set(at + of_weight, 0.0f);
      if (layout.has_dx) sums.set(at + layout.before_dx(), 0.0f);
    }
  });
  const float share = 1.0f / static_cast<float>(args.width);
  const int64_t first = blockIdx.x * rows_per_block,
                end = first + rows_per_block < args.rows ? first + rows_per_block : args.rows;
  for (int64_t row = first + warp; row < end; row += warps) {
    const int64_t begin = row * args.width;
    const float inv = args.inv[row], mean = kCentre ? args.mean[row] : 0.0f;
    float sum_g = 0.0f, sum_gn = 0.0f;
    for_packs<T>(args.width, [&](int64_t column, int64_t left) {
      float d[kPack<T>], v[kPack<T>], w[kPack<T>];
      load_floats<kAligned>(args.dy + begin + column, left, d);
      load_floats<kAligned>(args.x + begin + column, left, v);
      load_floats<kAligned>(args.weight + column, left, w);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) sum_g += d[i] * w[i], sum_gn += d[i] * w[i] * (v[i] - mean) * inv;
    });
    const float mean_g = kCentre ? warp_sum(sum_g) * share : 0.0f, mean_gn = warp_sum(sum_gn) * share;
    // Reads the row again, from L1. dx may be dy or x, because a lane reads its pack before it writes it.
    for_packs<T>(args.width, [&](int64_t column, int64_t left) {
      float d[kPack<T>], v[kPack<T>], w[kPack<T>], r[kPack<T>] = {};
      load_floats<kAligned>(args.dy + begin + column, left, d);
      load_floats<kAligned>(args.x + begin + column, left, v);
      load_floats<kAligned>(args.weight + column, left, w);
      if (args.residual) load_floats<kAligned>(args.residual + begin + column, left, r);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        const float n = (v[i] - mean) * inv;
        v[i] = r[i] + inv * (d[i] * w[i] - mean_g - n * mean_gn);
        const int64_t at = mine + i * layout.packs + column / kPack<T>;
        sums.set(at, sums.get(at) + d[i] * n);
        if constexpr (kCentre) sums.set(at + of_weight, sums.get(at + of_weight) + d[i]);
        if (layout.has_dx) sums.set(at + layout.before_dx(), sums.get(at + layout.before_dx()) + v[i]);
      }
      store_floats<kAligned>(args.dx + begin + column, left, v);
    });
  }
  if constexpr (kShared) {
    __syncthreads();
    for (int64_t at = threadIdx.x; at < floats; at += blockDim.x) {
      float sum = sums.get(at);
      for (int other = 1; other < warps; ++other) sum += sums.get(other * floats + at);
      partial[at] = sum;
    }
  }
}

}  // namespace slipstream::kernels
