// SPDX-License-Identifier: Apache-2.0
// Sums of squares on CUDA, in the order of the card: the same bits as on the CPU.

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/entry_points.h"
#include "kernels/cuda/workspace.h"

namespace slipstream::kernels {
namespace {

constexpr int64_t kBlock = 4096;  // elements, of the card
constexpr int kLanes = 16;        // of the card
constexpr int kThreads = 256;
constexpr int kBlocksPerLaunchBlock = kThreads / kLanes;
// One double a block, and the running total in front.
constexpr int64_t kBlocksAtOnce = kScratchBytes / 8 - 1;

/// sums[i] = the sum of block first + i; 16 lanes each.
__global__ void __launch_bounds__(kThreads) blocks_kernel(const float* x, int64_t elems, int64_t first, int64_t count, double* sums) {
  const int64_t block = int64_t{blockIdx.x} * kBlocksPerLaunchBlock + threadIdx.x / kLanes;
  const int64_t begin = (first + block) * kBlock;
  const int64_t end = block >= count ? begin : begin + kBlock < elems ? begin + kBlock : elems;
  double sum = 0.0;
  for (int64_t i = begin + threadIdx.x % kLanes; i < end; i += kLanes) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
#pragma unroll
  for (int width = kLanes / 2; width > 0; width /= 2) sum += __shfl_down_sync(kWholeWarp, sum, width, kLanes);
  if (threadIdx.x % kLanes == 0 && block < count) sums[block] = sum;
}

/// total (+)= sums in order; the last launch writes the result.
__global__ void __launch_bounds__(kThreads) finish_kernel(const double* sums, int64_t count, double* total, bool start, bool last,
                                                          double* result, bool accumulate) {
  __shared__ double storage[kThreads];
  const Shared<double> tile(storage);
  double sum = start || threadIdx.x > 0 ? 0.0 : *total;
  for (int64_t first = 0; first < count; first += kThreads) {
    if (first + threadIdx.x < count) tile[threadIdx.x] = sums[first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
      for (int i = 0; i < kThreads && first + i < count; ++i) sum += tile[i];
    __syncthreads();
  }
  if (threadIdx.x > 0) return;
  *total = sum;
  if (last) *result = accumulate ? *result + sum : sum;
}

}  // namespace

void sum_squares_cuda(LaunchContext& context, const SumSquares& args) {
  double* total = static_cast<double*>(scratch_of(context));
  double* sums = total + 1;
  const int64_t blocks = blocks_for(args.elems, kBlock);
  int64_t first = 0;
  do {
    const int64_t count = blocks - first < kBlocksAtOnce ? blocks - first : kBlocksAtOnce;
    if (count > 0)
      launch(stream_of(context), blocks_kernel, dim3(static_cast<unsigned>(blocks_for(count, kBlocksPerLaunchBlock))), dim3(kThreads), 0,
             args.x, args.elems, first, count, sums);
    launch(stream_of(context), finish_kernel, dim3(1), dim3(kThreads), 0, sums, count, total, first == 0, first + count == blocks,
           args.result, args.accumulate);
    first += count;
  } while (first < blocks);
}

}  // namespace slipstream::kernels
