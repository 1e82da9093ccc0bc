// SPDX-License-Identifier: Apache-2.0
#pragma once
// What layer norm and RMS norm share on CUDA: a warp per row, and sums over rows in two fixed stages.
//
// `kCentre` is layer norm: the mean is taken off and there is a bias. Rows are read again from L1 rather than kept in
// registers, so any width is the same code.

#include "kernels/common/row_blocks.h"
#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {

constexpr int kNormWarps = 4;  // rows of a block

template <typename T>
struct NormForward {
  const T* x;
  const T* delta;
  T* sum;
  const T* weight;
  const T* bias;
  T* y;
  float* mean;
  float* inv;
  int64_t rows, width;
  float eps;
};

template <typename T>
struct NormBackward {
  const T* dy;
  const T* x;
  const T* weight;
  const float* mean;
  const float* inv;
  const T* residual;
  T* dx;
  float* dweight;
  float* dbias;
  float* partial;  // [blocks, width] of dweight, then of dbias
  int64_t rows, width;
  bool accumulate;
};

/// body(column, elements left) for the packs of a row that this lane has.
template <typename T, typename Body>
__device__ __forceinline__ void for_packs(int64_t width, const Body& body) {
  for (int64_t column = threadIdx.x % kWarp * kPack<T>; column < width; column += kWarp * kPack<T>) body(column, width - column);
}

template <bool kCentre, bool kAligned, typename T>
__global__ void __launch_bounds__(kNormWarps * kWarp) norm_forward_kernel(NormForward<T> args) {
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

template <bool kCentre, bool kAligned, typename T>
__global__ void __launch_bounds__(kNormWarps * kWarp) norm_backward_kernel(NormBackward<T> args) {
  const int64_t row = int64_t{blockIdx.x} * kNormWarps + threadIdx.x / kWarp;
  if (row >= args.rows) return;  // the whole warp
  const int64_t begin = row * args.width;
  const float share = 1.0f / static_cast<float>(args.width), inv = args.inv[row], mean = kCentre ? args.mean[row] : 0.0f;
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
  for_packs<T>(args.width, [&](int64_t column, int64_t left) {
    float d[kPack<T>], v[kPack<T>], w[kPack<T>], r[kPack<T>] = {};
    load_floats<kAligned>(args.dy + begin + column, left, d);
    load_floats<kAligned>(args.x + begin + column, left, v);
    load_floats<kAligned>(args.weight + column, left, w);
    if (args.residual) load_floats<kAligned>(args.residual + begin + column, left, r);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) v[i] = r[i] + inv * (d[i] * w[i] - mean_g - (v[i] - mean) * inv * mean_gn);
    store_floats<kAligned>(args.dx + begin + column, left, v);
  });
}

constexpr int kNormColumns = 32, kNormRowLanes = 8;

/// partial = sums of a block of rows (RowBlocks), a thread per column and eighth of the rows, eighths added in order.
template <bool kCentre, typename T>
__global__ void __launch_bounds__(kNormColumns* kNormRowLanes) norm_partial_kernel(NormBackward<T> args) {
  __shared__ float weight_storage[kNormColumns * kNormRowLanes], bias_storage[kNormColumns * kNormRowLanes];
  const Shared<float> weights(weight_storage), biases(bias_storage);
  const int lane = threadIdx.x % kNormColumns, part = threadIdx.x / kNormColumns;
  const int64_t column = int64_t{blockIdx.x} * kNormColumns + lane;
  const int64_t per_block = args.rows <= 16 * 64 ? 16 : (args.rows + 63) / 64;  // RowBlocks::rows_per_block
  const int64_t begin = blockIdx.y * per_block, end = begin + per_block < args.rows ? begin + per_block : args.rows;
  float dweight = 0.0f, dbias = 0.0f;
  if (column < args.width)
    for (int64_t row = begin + part; row < end; row += kNormRowLanes) {
      const float d = to_float(args.dy[row * args.width + column]), v = to_float(args.x[row * args.width + column]);
      dweight += d * (v - (kCentre ? args.mean[row] : 0.0f)) * args.inv[row];
      dbias += d;
    }
  weights[threadIdx.x] = dweight;
  biases[threadIdx.x] = dbias;
  __syncthreads();
  if (part > 0 || column >= args.width) return;
  for (int i = 1; i < kNormRowLanes; ++i) {
    dweight += weights[i * kNormColumns + lane];
    dbias += biases[i * kNormColumns + lane];
  }
  args.partial[blockIdx.y * args.width + column] = dweight;
  if constexpr (kCentre) args.partial[(int64_t{gridDim.y} + blockIdx.y) * args.width + column] = dbias;
}

constexpr int kNormFinishThreads = 128;

/// dweight (and dbias) (+)= the partial sums, block by block.
template <bool kCentre, typename T>
__global__ void __launch_bounds__(kNormFinishThreads) norm_finish_kernel(NormBackward<T> args, int64_t blocks) {
  const int64_t column = int64_t{blockIdx.x} * kNormFinishThreads + threadIdx.x;
  if (column >= args.width) return;
  float dweight = args.accumulate ? args.dweight[column] : 0.0f;
  for (int64_t block = 0; block < blocks; ++block) dweight += args.partial[block * args.width + column];
  args.dweight[column] = dweight;
  if constexpr (kCentre) {
    float dbias = args.accumulate ? args.dbias[column] : 0.0f;
    for (int64_t block = 0; block < blocks; ++block) dbias += args.partial[(blocks + block) * args.width + column];
    args.dbias[column] = dbias;
  }
}

/// Enqueues.
template <bool kCentre, typename T>
void norm_forward(const LaunchContext& context, const NormForward<T>& args) {
  const bool aligned = args.width % kPack<T> == 0 && all_aligned(args.x, args.delta, args.sum, args.weight, args.bias, args.y);
  for_flag(aligned, [&](auto whole) {
    launch(stream_of(context), norm_forward_kernel<kCentre, whole.value, T>, dim3(static_cast<unsigned>(blocks_for(args.rows, kNormWarps))),
           dim3(kNormWarps * kWarp), 0, args);
  });
}

/// Enqueues. The sums over rows come first: dx may be dy or x.
template <bool kCentre, typename T>
void norm_backward(const LaunchContext& context, const NormBackward<T>& args) {
  const int64_t blocks = RowBlocks{args.rows}.count();
  if (blocks > 0)
    launch(stream_of(context), norm_partial_kernel<kCentre, T>,
           dim3(static_cast<unsigned>(blocks_for(args.width, kNormColumns)), static_cast<unsigned>(blocks)), dim3(kNormColumns * kNormRowLanes), 0, args);
  launch(stream_of(context), norm_finish_kernel<kCentre, T>, dim3(static_cast<unsigned>(blocks_for(args.width, kNormFinishThreads))),
         dim3(kNormFinishThreads), 0, args, blocks);
  if (blocks == 0) return;
  const bool aligned = args.width % kPack<T> == 0 && all_aligned(args.dy, args.x, args.weight, args.residual, args.dx);
  for_flag(aligned, [&](auto whole) {
    launch(stream_of(context), norm_backward_kernel<kCentre, whole.value, T>, dim3(static_cast<unsigned>(blocks_for(args.rows, kNormWarps))),
           dim3(kNormWarps * kWarp), 0, args);
  });
}

}  // namespace slipstream::kernels
