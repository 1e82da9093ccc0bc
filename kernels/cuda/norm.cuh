// SPDX-License-Identifier: Apache-2.0
#pragma once
// What layer norm and RMS norm share on CUDA: a warp per row, and sums over rows in two fixed stages.
//
// The backward reads dy, x and the residual and writes dx, 4 passes over a tensor, and leaves the sums of at least 32
// rows in scratch (1 / 16 of a pass in bf16, 1 / 32 in float, twice that with a bias; read once more by the last
// kernel). `kCentre` is layer norm: the mean is taken off and there is a bias. Rows are read again from L1 rather than
// kept in registers, so any width is the same code.

#include "kernels/common/checks.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/workspace.h"

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
  int64_t rows, width;
  bool accumulate;
};

/// body(column, elements left) for the packs of a row that this lane has.
template <typename T, typename Body>
__device__ __forceinline__ void for_packs(int64_t width, const Body& body) {
  for (int64_t column = threadIdx.x % kWarp * kPack<T>; column < width; column += kWarp * kPack<T>)
    body(column, width - column);
}

template <bool kCentre, bool kAligned, typename T>
__global__ void __launch_bounds__(kNormWarps* kWarp) norm_forward_kernel(NormForward<T> args) {
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

/// Sums over rows of dweight and dbias, by place: element i of pack p lies at i * packs + p, so that neighbouring lanes
/// are in neighbouring banks; those of dbias lie behind all of dweight's.
template <bool kCentre, typename T>
struct NormSums {
  int64_t packs;  // of a row, the last one perhaps partial
  __host__ __device__ constexpr explicit NormSums(int64_t width) : packs((width + kPack<T> - 1) / kPack<T>) {}
  __host__ __device__ constexpr int64_t of_weight() const { return packs * kPack<T>; }
  __host__ __device__ constexpr int64_t floats() const { return of_weight() * (kCentre ? 2 : 1); }
};

/// Where a warp adds what its rows give: its part of shared memory, or of the partial sums where a row is too wide for
/// that.
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

/// A block takes `rows_per_block` rows, a warp every so manieth of them: dx, and its sums row after row, a lane those
/// of its own packs. At the end the sums of the warps are added in order and go to partial[block].
template <bool kCentre, bool kShared, bool kAligned, typename T>
__global__ void __launch_bounds__(kNormWarps* kWarp)
    norm_backward_kernel(NormBackward<T> args, int64_t rows_per_block, float* all_partial) {
  SLIP_DYNAMIC_SHARED(bytes);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  const NormSums<kCentre, T> layout(args.width);
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
    // The row once more, from L1; dx may be dy or x, and a lane has read its pack before it writes it.
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

constexpr int kNormColumns = 32, kNormRowLanes = 8;

/// dweight (and dbias) (+)= the partial sums: a thread per place and eighth of the blocks, eighths added in order.
template <bool kCentre, typename T>
__global__ void __launch_bounds__(kNormColumns* kNormRowLanes)
    norm_finish_kernel(NormBackward<T> args, int64_t blocks, const float* partial) {
  __shared__ float storage[kNormColumns * kNormRowLanes];
  const Shared<float> eighths(storage);
  const NormSums<kCentre, T> layout(args.width);
  const int lane = static_cast<int>(threadIdx.x) % kNormColumns, part = static_cast<int>(threadIdx.x) / kNormColumns;
  const int64_t at = int64_t{blockIdx.x} * kNormColumns + lane;
  float sum = 0.0f;
  if (at < layout.floats())
    for (int64_t block = part; block < blocks; block += kNormRowLanes) sum += partial[block * layout.floats() + at];
  eighths[static_cast<int>(threadIdx.x)] = sum;
  __syncthreads();
  const bool bias = at >= layout.of_weight();
  const int64_t place = bias ? at - layout.of_weight() : at,
                column = place % layout.packs * kPack<T> + place / layout.packs;
  if (part > 0 || at >= layout.floats() || column >= args.width) return;
  for (int i = 1; i < kNormRowLanes; ++i) sum += eighths[i * kNormColumns + lane];
  float* to = (bias ? args.dbias : args.dweight) + column;
  *to = args.accumulate ? *to + sum : sum;
}

/// Enqueues.
template <bool kCentre, typename T>
void norm_forward(const LaunchContext& context, const NormForward<T>& args) {
  const bool aligned =
      args.width % kPack<T> == 0 && all_aligned(args.x, args.delta, args.sum, args.weight, args.bias, args.y);
  for_flag(aligned, [&](auto whole) {
    launch(stream_of(context), norm_forward_kernel<kCentre, whole.value, T>,
           dim3(static_cast<unsigned>(blocks_for(args.rows, kNormWarps))), dim3(kNormWarps * kWarp), 0, args);
  });
}

/// Enqueues.
template <bool kCentre, typename T>
void norm_backward(const LaunchContext& context, const NormBackward<T>& args) {
  constexpr int64_t kBlocksMost = 512, kRowsLeast = 32, kSharedBytes = 96 * 1024;
  const int64_t floats = NormSums<kCentre, T>(args.width).floats(), row_bytes = 4 * floats,
                fitting = kScratchBytes / row_bytes;
  require_at_least("norm_backward", "scratch bytes of a stream", kScratchBytes, row_bytes);
  // As many blocks of rows as fill a GPU, as far as the scratch holds their sums; a function of the shape alone.
  int64_t blocks = blocks_for(args.rows, kRowsLeast);
  blocks = blocks < kBlocksMost ? blocks : kBlocksMost;
  blocks = blocks < fitting ? blocks : fitting;
  const int64_t rows_per_block = blocks > 0 ? blocks_for(args.rows, blocks) : 0;
  blocks = blocks > 0 ? blocks_for(args.rows, rows_per_block) : 0;
  float* partial = static_cast<float*>(scratch_of(context));
  const int64_t warps_fitting = kSharedBytes / row_bytes;
  const bool aligned = args.width % kPack<T> == 0 && all_aligned(args.dy, args.x, args.weight, args.residual, args.dx);
  if (blocks > 0)
    for_flag(warps_fitting > 0, [&](auto shared) {
      for_flag(aligned, [&](auto whole) {
        const int64_t warps = !shared.value ? 1 : warps_fitting < kNormWarps ? warps_fitting : kNormWarps;
        launch(stream_of(context), norm_backward_kernel<kCentre, shared.value, whole.value, T>,
               dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(warps * kWarp)),
               shared.value ? static_cast<size_t>(warps * row_bytes) : 0, args, rows_per_block, partial);
      });
    });
  launch(stream_of(context), norm_finish_kernel<kCentre, T>,
         dim3(static_cast<unsigned>(blocks_for(floats, kNormColumns))), dim3(kNormColumns * kNormRowLanes), 0, args,
         blocks, partial);
}

}  // namespace slipstream::kernels
