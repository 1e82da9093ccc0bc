// SPDX-License-Identifier: Apache-2.0
// Columns on CUDA: a thread per element, neighbours on neighbouring columns.

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/entry_points.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) take_kernel(ColumnsTake args) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.rows * args.width) return;
  static_cast<T*>(args.to)[index] = static_cast<const T*>(args.from)[index / args.width * args.from_stride + index % args.width];
}

template <typename T>
__global__ void __launch_bounds__(kThreads) sum_kernel(ColumnsSum args) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.rows * args.width) return;
  static_cast<T*>(args.to)[index / args.width * args.to_stride + index % args.width] = from_float<T>(args.a[index] + args.b[index]);
}

dim3 grid_of(int64_t elems) { return dim3(static_cast<unsigned>(blocks_for(elems, kThreads))); }

}  // namespace

void columns_take_cuda(LaunchContext& context, const ColumnsTake& args) {
  for_dtype(args.dtype, [&](auto type) {
    launch(stream_of(context), take_kernel<decltype(type)>, grid_of(args.rows * args.width), dim3(kThreads), 0, args);
  });
}

void columns_sum_cuda(LaunchContext& context, const ColumnsSum& args) {
  for_dtype(args.dtype, [&](auto type) {
    launch(stream_of(context), sum_kernel<decltype(type)>, grid_of(args.rows * args.width), dim3(kThreads), 0, args);
  });
}

}  // namespace slipstream::kernels
