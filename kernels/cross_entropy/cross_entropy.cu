// SPDX-License-Identifier: Apache-2.0
// Cross-entropy on CUDA: one block per row finds maximum and sum together, then writes the gradient over the logits.

#include "kernels/cross_entropy/cross_entropy_cuda.h"
#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;
constexpr float kLowest = -__builtin_inff();

/// sum of e^(x - largest) over some logits. For no logits, or only masked ones: {-inf, 0}.
struct Softmax {
  float largest, sum;

  /// The value subtracted from a logit before the exponential: e^(-inf - base) is 0 in every case. NaN is kept.
  __device__ __forceinline__ float base() const { return largest == kLowest ? 0.0f : largest; }
};

constexpr float kLog2E = 1.4426950408889634f;
/// A few ulp: two from ex2, and the rounding of the product affects only negligible weights.
__device__ __forceinline__ float weight_of(float x, float base) { return ptx::exp2_approx((x - base) * kLog2E); }

__device__ __forceinline__ Softmax merged(const Softmax& a, const Softmax& b) {
  const float largest = fmaxf(a.largest, b.largest);
  const float left = a.largest == largest ? a.sum : a.sum * weight_of(a.largest, largest);
  const float right = b.largest == largest ? b.sum : b.sum * weight_of(b.largest, largest);
  return {largest, left + right};
}

__device__ __forceinline__ Softmax warp_merged(Softmax mine) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2)
    mine = merged(mine, {__shfl_xor_sync(kWholeWarp, mine.largest, bits), __shfl_xor_sync(kWholeWarp, mine.sum, bits)});
  return mine;
}

/// A pack of logits; elements past the last one have no weight.
template <bool kAligned, typename T>
__device__ __forceinline__ void load_logits(const T* logits, int column, int vocab, int elems, float (&x)[kPack<T>]) {
  load_floats<kAligned>(logits + column, elems - column, x);
  if (column + kPack<T> <= vocab) return;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i)
    if (column + i >= vocab) x[i] = kLowest;
}

/// Maximum and sum of a row, the same on all threads of the block.
template <bool kAligned, typename T>
__device__ __forceinline__ Softmax softmax_of(const T* logits, int vocab, const Shared<float>& largests,
                                              const Shared<float>& sums) {
  Softmax mine = {kLowest, 0.0f};
  for (int column = static_cast<int>(threadIdx.x) * kPack<T>; column < vocab; column += kThreads * kPack<T>) {
    float x[kPack<T>];
    load_logits<kAligned>(logits, column, vocab, vocab, x);
    float highest = mine.largest;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) highest = fmaxf(highest, x[i]);
    if (highest > mine.largest)
      mine = {highest, mine.sum * weight_of(mine.largest, highest)};  // rare after the first few packs
    const float base = mine.base();
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) mine.sum += weight_of(x[i], base);
  }
  mine = warp_merged(mine);
  if (threadIdx.x % kWarp == 0) {
    largests[threadIdx.x / kWarp] = mine.largest;
    sums[threadIdx.x / kWarp] = mine.sum;
  }
  __syncthreads();
  Softmax all = {largests[0], sums[0]};
  for (int i = 1; i < kThreads / kWarp; ++i) all = merged(all, {largests[i], sums[i]});
  return all;
}

/// logits = gradient_scale (softmax - one at the target); 0 past the last one. `target` < 0: no target.
template <bool kAligned, typename T>
__device__ __forceinline__ void write_gradient(T* logits, int stride, int vocab, const Softmax& all, int64_t target,
                                               float gradient_scale) {
  const float scale = gradient_scale / all.sum, base = all.base();
  for (int column = static_cast<int>(threadIdx.x) * kPack<T>; column < stride; column += kThreads * kPack<T>) {
    float x[kPack<T>];
    load_logits<kAligned>(logits, column, vocab, stride, x);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x[i] = weight_of(x[i], base) * scale;
    if (column <= target && target < column + kPack<T>)
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i)
        if (column + i == target) x[i] -= gradient_scale;
    // NaN of an invalid row must not reach its padding.
    if (column + kPack < T >> vocab)
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i)
        if (column + i >= vocab) x[i] = 0.0f;
    store_floats<kAligned>(logits + column, stride - column, x);
  }
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) row_kernel(CrossEntropy args) {
  __shared__ float largest_storage[kThreads / kWarp], sum_storage[kThreads / kWarp];
  const Shared<float> largests(largest_storage), sums(sum_storage);
  const int64_t row = blockIdx.x;
  T* logits = static_cast<T*>(args.logits) + row * args.stride;
  const int32_t target = args.targets[row];
  const bool known = target >= 0 && target < args.vocab;
  const float target_logit = known ? to_float(logits[target]) : 0.0f;
  const Softmax all = softmax_of<kAligned>(logits, static_cast<int>(args.vocab), largests, sums);
  if (threadIdx.x == 0)
    args.row_losses[row] = known ? logf(all.sum) + (all.largest - target_logit) : __uint_as_float(0x7fffffffu);
  if (args.backward)
    write_gradient<kAligned>(logits, static_cast<int>(args.stride), static_cast<int>(args.vocab), all,
                             known ? target : -1, args.gradient_scale);
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) part_kernel(CrossEntropyPart args) {
  __shared__ float largest_storage[kThreads / kWarp], sum_storage[kThreads / kWarp];
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(args.logits) + row * args.stride;
  const Softmax all = softmax_of<kAligned>(logits, static_cast<int>(args.vocab), Shared<float>(largest_storage),
                                           Shared<float>(sum_storage));
  if (threadIdx.x != 0) return;
  const int64_t target = args.targets[row] - args.first;
  double* part = args.parts + row * kCrossEntropyPartElems;
  part[0] = static_cast<double>(all.largest);
  part[1] = static_cast<double>(all.sum);
  // A target that no rank can have makes the loss NaN, as in row_kernel.
  const bool known = args.targets[row] >= 0 && args.targets[row] < args.whole_vocab;
  part[2] = target >= 0 && target < args.vocab ? static_cast<double>(to_float(logits[target]))
            : known                            ? 0.0
                                               : static_cast<double>(__uint_as_float(0x7fffffffu));
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) merge_kernel(CrossEntropyMerge args) {
  const int64_t row = blockIdx.x;
  Softmax all = {kLowest, 0.0f};
  double logit = 0.0;
  for (int64_t rank = 0; rank < args.ranks; ++rank) {
    const double* part = args.parts + (rank * args.rows + row) * kCrossEntropyPartElems;
    all = merged(all, {static_cast<float>(part[0]), static_cast<float>(part[1])});
    logit += part[2];
  }
  if (threadIdx.x == 0)
    args.row_losses[row] = logf(all.sum) + static_cast<float>(static_cast<double>(all.largest) - logit);
  if (!args.backward) return;
  const int64_t target = args.targets[row] - args.first;
  write_gradient<kAligned>(static_cast<T*>(args.logits) + row * args.stride, static_cast<int>(args.stride),
                           static_cast<int>(args.vocab), all, target < args.vocab ? target : -1, args.gradient_scale);
}

constexpr int kSumThreads = static_cast<int>(kLossLanes);

/// loss_sum = sum_of_losses: one thread per lane of the op card.
__global__ void __launch_bounds__(kSumThreads) sum_kernel(const float* row_losses, int64_t rows, double* loss_sum) {
  __shared__ double storage[kSumThreads];
  const Shared<double> lanes(storage);
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0.0;
#pragma unroll 8
  for (int64_t row = thread; row < rows; row += kSumThreads) sum += static_cast<double>(row_losses[row]);
  lanes[thread] = sum;
  for (int width = kSumThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (thread < width) lanes[thread] += lanes[thread + width];
  }
  if (thread == 0) *loss_sum = lanes[0];
}

}  // namespace

void cross_entropy_cuda(LaunchContext& context, const CrossEntropy& args) {
  if (args.rows > 0)
    for_dtype(args.dtype, [&](auto type) {
      using T = decltype(type);
      for_flag(args.stride % kPack<T> == 0 && all_aligned(args.logits), [&](auto aligned) {
        launch(stream_of(context), row_kernel<aligned.value, T>, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads),
               0, args);
      });
    });
  launch(stream_of(context), sum_kernel, dim3(1), dim3(kSumThreads), 0, args.row_losses, args.rows, args.loss_sum);
}

void cross_entropy_part_cuda(LaunchContext& context, const CrossEntropyPart& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(args.stride % kPack<T> == 0 && all_aligned(args.logits), [&](auto aligned) {
      launch(stream_of(context), part_kernel<aligned.value, T>, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads),
             0, args);
    });
  });
}

void cross_entropy_merge_cuda(LaunchContext& context, const CrossEntropyMerge& args) {
  if (args.rows > 0)
    for_dtype(args.dtype, [&](auto type) {
      using T = decltype(type);
      for_flag(args.stride % kPack<T> == 0 && all_aligned(args.logits), [&](auto aligned) {
        launch(stream_of(context), merge_kernel<aligned.value, T>, dim3(static_cast<unsigned>(args.rows)),
               dim3(kThreads), 0, args);
      });
    });
  launch(stream_of(context), sum_kernel, dim3(1), dim3(kSumThreads), 0, args.row_losses, args.rows, args.loss_sum);
}

}  // namespace slipstream::kernels
