// SPDX-License-Identifier: Apache-2.0
// Columns on CUDA: one thread per 16 bytes of a row if operands are aligned.

#include "kernels/columns/columns.h"
#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;

/// Copies elements unchanged, in whole packs if rows and width are aligned, and otherwise one by one.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) take_kernel(ColumnsTake args) {
  ptx::after_earlier_kernels();
  constexpr int kElems = kAligned ? kPack<T> : 1;
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems;
  if (index >= args.rows * args.width) return;
  T* to = static_cast<T*>(args.to) + index;
  const T* from = static_cast<const T*>(args.from) + index / args.width * args.from_stride + index % args.width;
  if constexpr (kAligned)
    ptx::store_16(to, ptx::load_16(from));
  else
    *to = *from;
}

/// Runs one thread per pack of a row.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) sum_kernel(ColumnsSum args) {
  ptx::after_earlier_kernels();
  const int64_t packs = (args.width + kPack<T> - 1) / kPack<T>, index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / packs, column = index % packs * kPack<T>, left = args.width - column;
  if (row >= args.rows) return;
  float a[kPack<T>], b[kPack<T>];
  load_floats<kAligned>(args.a + row * args.width + column, left, a);
  load_floats<kAligned>(args.b + row * args.width + column, left, b);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) a[i] += b[i];
  store_floats<kAligned>(static_cast<T*>(args.to) + row * args.to_stride + column, left, a);
}

dim3 grid_of(int64_t threads) { return dim3(static_cast<unsigned>(blocks_for(threads, kThreads))); }

}  // namespace

void columns_take_cuda(LaunchContext& context, const ColumnsTake& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(args.width % kPack<T> == 0 && args.from_stride % kPack<T> == 0 && all_aligned(args.from, args.to),
             [&](auto aligned) {
               launch(stream_of(context), take_kernel<aligned.value, T>,
                      grid_of(args.rows * args.width / (aligned.value ? kPack<T> : 1)), dim3(kThreads), 0, args);
             });
  });
}

void columns_sum_cuda(LaunchContext& context, const ColumnsSum& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(args.width % kPack<T> == 0 && args.to_stride % kPack<T> == 0 && all_aligned(args.a, args.b, args.to),
             [&](auto aligned) {
               launch(stream_of(context), sum_kernel<aligned.value, T>,
                      grid_of(args.rows * blocks_for(args.width, kPack<T>)), dim3(kThreads), 0, args);
             });
  });
}

}  // namespace slipstream::kernels
