// SPDX-License-Identifier: Apache-2.0
// The counts of rows on a GPU.

#include "kernels/cuda/common.cuh"
#include "kernels/experts/counts.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMost = 0x7fffffff;

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
    args.offsets[j + 1] = static_cast<int32_t>(sum < kMost ? sum : kMost);
  }
  __syncwarp();  // the first thread reads the sums of the others
  if (threadIdx.x > 0) return;
  int64_t sum = -args.begin;
  args.offsets[0] = 0;
  for (int64_t j = 1; j <= args.experts; ++j) {
    sum += args.offsets[j];
    args.offsets[j] = static_cast<int32_t>(sum < 0 ? 0 : sum < args.bound ? sum : args.bound);
  }
}

/// Every thread of a warp looks at some of the ranks that own experts.
__global__ void __launch_bounds__(kWarp) late_rows_kernel(LateRows args) {
  ptx::after_earlier_kernels();
  int rows = 0, late = 0;
  for (int64_t owner = threadIdx.x; owner < args.ranks; owner += kWarp) {
    int64_t at = 0;
    for (int64_t e = owner * args.experts; e < (owner + 1) * args.experts; ++e)
      for (int64_t s = 0; s < args.ranks; ++s) {
        const int32_t listed = args.counts[s * args.ranks * args.experts + e], count = listed > 0 ? listed : 0;
        at += count;
        if (s != args.rank) continue;
        rows += count;
        late = late || (count > 0 && at > args.bound) ? 1 : 0;
      }
  }
  rows = warp_sum(rows), late = warp_sum(late);
  if (threadIdx.x == 0) *args.late = late > 0 ? rows : 0;
}

}  // namespace

void count_rows_cuda(LaunchContext& context, const CountRows& args) {
  launch(stream_of(context), count_rows_kernel, dim3(1), dim3(kThreads), 0, args);
}

void own_rows_cuda(LaunchContext& context, const OwnRows& args) {
  launch(stream_of(context), own_rows_kernel, dim3(1), dim3(kWarp), 0, args);
}

void late_rows_cuda(LaunchContext& context, const LateRows& args) {
  launch(stream_of(context), late_rows_kernel, dim3(1), dim3(kWarp), 0, args);
}

}  // namespace slipstream::kernels
