// SPDX-License-Identifier: Apache-2.0
// The norm of heads on CUDA: a warp holds one head in registers. Sums over rows have two fixed stages, so that bits do
// not depend on the order of blocks.

#include <algorithm>

#include "kernels/common/checks.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/workspace.h"
#include "kernels/head_norm/head_norm.h"

namespace slipstream::kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kHeld = 8;  // elements of a head per lane: heads of up to 256
constexpr int kHeadDimMax = kHeld * kWarp;
constexpr int64_t kRowsLeast = 32, kMostBlocks = 4 * 132;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kWholeWarp, value, bits);
  return value;
}

/// Elements lane, lane + 32 and so on of a head, with zeros after its end.
template <typename T>
__device__ __forceinline__ void load_head(const T* from, int head_dim, int lane, float (&values)[kHeld]) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = lane + i * kWarp;
    values[i] = column < head_dim ? to_float(from[column]) : 0.0f;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(HeadNormForward args) {
  ptx::after_earlier_kernels();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, head_dim = static_cast<int>(args.head_dim);
  const int64_t normed = args.heads + args.kv_heads, packed = normed + args.kv_heads;
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, row = item / packed, head = item % packed;
  if (row >= args.rows) return;  // whole warps
  const T* x = static_cast<const T*>(args.x) + item * head_dim;
  T* y = static_cast<T*>(args.y) + item * head_dim;
  float values[kHeld], square = 0.0f;
  load_head(x, head_dim, lane, values);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) square += values[i] * values[i];
  const float inv_rms = head < normed ? 1.0f / sqrtf(warp_sum(square) / static_cast<float>(head_dim) + args.eps) : 1.0f;
  const T* weight = static_cast<const T*>(head < args.heads ? args.q_weight : args.k_weight);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = lane + i * kWarp;
    if (column >= head_dim) continue;
    y[column] = head < normed ? from_float<T>(rounded<T>(values[i] * inv_rms) * to_float(weight[column])) : x[column];
  }
  if (head < normed && lane == 0) args.inv_rms[row * normed + head] = inv_rms;
}

/// A block takes rows_per_block rows, and its warps take the heads in turn. partial[block]: the sums for the weights of
/// queries, then those of keys.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(HeadNormBackward args, int64_t rows_per_block, float* partial) {
  ptx::after_earlier_kernels();
  __shared__ float storage[kWarps * kHeadDimMax];
  const Shared<float> of_warps(storage);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            head_dim = static_cast<int>(args.head_dim);
  const int64_t normed = args.heads + args.kv_heads, packed = normed + args.kv_heads;
  const int64_t begin = blockIdx.x * rows_per_block,
                rows = begin + rows_per_block < args.rows ? rows_per_block : args.rows - begin;
  for (int of_keys = 0; of_keys < 2; ++of_keys) {
    const int64_t heads = of_keys != 0 ? args.kv_heads : args.heads, first = of_keys != 0 ? args.heads : 0;
    float weight[kHeld], dweight[kHeld] = {};
    load_head(static_cast<const T*>(of_keys != 0 ? args.k_weight : args.q_weight), head_dim, lane, weight);
    for (int64_t item = warp; item < rows * heads; item += kWarps) {
      const int64_t row = begin + item / heads, head = first + item % heads, at = (row * packed + head) * head_dim;
      const float inv_rms = args.inv_rms[row * normed + head];
      T* d = static_cast<T*>(args.d) + at;
      float of_y[kHeld], n[kHeld], sum = 0.0f;
      load_head(d, head_dim, lane, of_y);
      load_head(static_cast<const T*>(args.x) + at, head_dim, lane, n);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        n[i] *= inv_rms;
        dweight[i] += of_y[i] * n[i];
        sum += of_y[i] * n[i] * weight[i];
      }
      const float mean = warp_sum(sum) / static_cast<float>(head_dim);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int column = lane + i * kWarp;
        if (column < head_dim) d[column] = from_float<T>((of_y[i] * weight[i] - n[i] * mean) * inv_rms);
      }
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int column = lane + i * kWarp;
      if (column < head_dim) of_warps[warp * kHeadDimMax + column] = dweight[i];
    }
    __syncthreads();  // the sums of all warps are there
    for (int column = static_cast<int>(threadIdx.x); column < head_dim; column += kThreads) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) sum += of_warps[i * kHeadDimMax + column];
      partial[(int64_t{blockIdx.x} * 2 + of_keys) * head_dim + column] = sum;
    }
    __syncthreads();  // they are read before the next ones come
  }
}

/// The gradients of the weights (+)= the partial sums of all blocks, in order.
__global__ void __launch_bounds__(kThreads) finish_kernel(HeadNormBackward args, int64_t blocks, const float* partial) {
  ptx::after_earlier_kernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, floats = 2 * args.head_dim;
  if (at >= floats) return;
  float sum = 0.0f;
  for (int64_t block = 0; block < blocks; ++block) sum += partial[block * floats + at];
  float* to = at < args.head_dim ? args.dq_weight + at : args.dk_weight + at - args.head_dim;
  *to = args.accumulate ? *to + sum : sum;
}

}  // namespace

void head_norm_forward_cuda(LaunchContext& context, const HeadNormForward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    launch(stream_of(context), forward_kernel<T>,
           dim3(static_cast<unsigned>(blocks_for(args.rows * (args.heads + 2 * args.kv_heads), kWarps))),
           dim3(kThreads), 0, args);
  });
}

void head_norm_backward_cuda(LaunchContext& context, const HeadNormBackward& args) {
  const int64_t floats = 2 * args.head_dim, fitting = kScratchBytes / (4 * floats);
  int64_t blocks = std::min({blocks_for(args.rows, kRowsLeast), kMostBlocks, fitting});
  const int64_t rows_per_block = blocks > 0 ? blocks_for(args.rows, blocks) : 0;
  blocks = blocks > 0 ? blocks_for(args.rows, rows_per_block) : 0;
  float* partial = static_cast<float*>(scratch_of(context));
  if (blocks > 0)
    for_dtype(args.dtype, [&](auto type) {
      launch(stream_of(context), backward_kernel<decltype(type)>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
             0, args, rows_per_block, partial);
    });
  launch(stream_of(context), finish_kernel, dim3(static_cast<unsigned>(blocks_for(floats, kThreads))), dim3(kThreads),
         0, args, blocks, partial);
}

}  // namespace slipstream::kernels
