// SPDX-License-Identifier: Apache-2.0
// The rotary embedding on CUDA: a thread rotates the pairs of 16 bytes of the first half of a head.

#include "kernels/cuda/common.cuh"
#include "kernels/rope/rope.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) rope_kernel(Rope args) {
  ptx::after_earlier_kernels();
  const int64_t half = args.head_dim / 2;
  const int64_t packs = (half + kPack<T> - 1) / kPack<T>;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t head = index / packs, row = head / args.heads;
  if (row >= args.batch * args.tokens) return;
  const int64_t column = index % packs * kPack<T>, count = half - column;
  T* x = static_cast<T*>(args.x) + row * args.row_stride + head % args.heads * args.head_dim + column;
  const float* table = args.table + (row % args.tokens + args.position_offset) * args.head_dim + column;
  float low[kPack<T>], high[kPack<T>], cosine[kPack<T>], sine[kPack<T>];
  load_floats<kAligned>(x, count, low);
  load_floats<kAligned>(x + half, count, high);
  load_floats<kAligned>(table, count, cosine);
  load_floats<kAligned>(table + half, count, sine);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const float turn = args.inverse ? -sine[i] : sine[i], a = low[i];
    low[i] = a * cosine[i] - high[i] * turn;
    high[i] = high[i] * cosine[i] + a * turn;
  }
  store_floats<kAligned>(x, count, low);
  store_floats<kAligned>(x + half, count, high);
}

}  // namespace

void rope_cuda(LaunchContext& context, const Rope& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t half = args.head_dim / 2,
                  threads = args.batch * args.tokens * args.heads * blocks_for(half, kPack<T>);
    const bool whole_packs = half % kPack<T> == 0 && args.row_stride % kPack<T> == 0;
    for_flag(whole_packs && all_aligned(args.x, args.table), [&](auto aligned) {
      launch(stream_of(context), rope_kernel<aligned.value, T>,
             dim3(static_cast<unsigned>(blocks_for(threads, kThreads))), dim3(kThreads), 0, args);
    });
  });
}

}  // namespace slipstream::kernels
