// SPDX-License-Identifier: Apache-2.0
// The counts of rows on a GPU.

#include "kernels/cuda/common.cuh"
#include "kernels/experts/counts.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) count_rows_kernel(CountRows args) {
  ptx::after_earlier_kernels();
  for (int64_t e = threadIdx.x; e < args.experts; e += kThreads) args.counts[e] = args.offsets[e + 1] - args.offsets[e];
}

/// Every thread of a warp adds up the counts of some experts, and the first one adds the experts: there are few of
/// them.
__global__ void __launch_bounds__(kWarp) own_rows_kernel(OwnRows args) {
  ptx::after_earlier_kernels();
  for (int64_t j = threadIdx.x; j < args.experts; j += kWarp) {
    int64_t sum = 0;
    for (int64_t s = 0; s < args.ranks; ++s) {
      const int32_t count = args.counts[(s * args.ranks + args.rank) * args.experts + j];
      sum += count > 0 ? count : 0;
    }
    args.offsets[j + 1] = static_cast<int32_t>(sum < args.bound ? sum : args.bound);
  }
  __syncwarp();  // the first thread reads the sums of the others
  if (threadIdx.x > 0) return;
  int64_t sum = 0;
  args.offsets[0] = 0;
  for (int64_t j = 1; j <= args.experts; ++j) {
    sum += args.offsets[j];
    args.offsets[j] = static_cast<int32_t>(sum < args.bound ? sum : args.bound);
  }
}

}  // namespace

void count_rows_cuda(LaunchContext& context, const CountRows& args) {
  launch(stream_of(context), count_rows_kernel, dim3(1), dim3(kThreads), 0, args);
}

void own_rows_cuda(LaunchContext& context, const OwnRows& args) {
  launch(stream_of(context), own_rows_kernel, dim3(1), dim3(kWarp), 0, args);
}

}  // namespace slipstream::kernels
