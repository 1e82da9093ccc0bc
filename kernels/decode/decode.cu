// SPDX-License-Identifier: Apache-2.0
// The products of text generation on CUDA: a warp multiplies a few rows of the weight, which is read once.

#include "kernels/cuda/common.cuh"
#include "kernels/decode/decode_cuda.h"

namespace slipstream::kernels {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

/// The weight rows of a warp. With several rows of x they share the loads of x, which would otherwise exceed those of
/// the weight.
template <int kRows>
constexpr int kOutputs = kRows == 1 ? 2 : 4;

/// Rows and outputs after the last one repeat it and are not stored. A sum has the same order for any kRows: a lane
/// adds its packs, and then the lanes are added.
template <int kRows, bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(FewRowsProduct args) {
  ptx::after_earlier_kernels();
  constexpr int kOut = kOutputs<kRows>;
  [[maybe_unused]] constexpr int kAhead = kRows == 1 ? 2 : 1;  // packs of a weight row that are loaded at once
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * kOut;
  if (first >= args.out) return;  // the whole warp
  const T* weight[kOut];
  const float* x[kRows];
#pragma unroll
  for (int o = 0; o < kOut; ++o)
    weight[o] = static_cast<const T*>(args.weight) + (first + o < args.out ? first + o : args.out - 1) * args.in;
#pragma unroll
  for (int r = 0; r < kRows; ++r) x[r] = args.x + (r < args.rows ? r : args.rows - 1) * args.in;
  float sums[kOut][kRows] = {};
#pragma unroll kAhead
  for (int64_t column = lane * kPack<T>; column < args.in; column += kWarp * kPack<T>) {
    float w[kOut][kPack<T>];
#pragma unroll
    for (int o = 0; o < kOut; ++o) load_floats<kAligned>(weight[o] + column, args.in - column, w[o]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float values[kPack<T>];
      load_floats<kAligned>(x[r] + column, args.in - column, values);
#pragma unroll
      for (int o = 0; o < kOut; ++o)
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) sums[o][r] += values[i] * w[o][i];
    }
  }
#pragma unroll
  for (int o = 0; o < kOut; ++o)
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = warp_sum(sums[o][r]);
      if (lane == 0 && r < args.rows && first + o < args.out)
        args.y[r * args.out + first + o] = sum + (args.bias ? args.bias[first + o] : 0.0f);
    }
}

template <int kRows, typename T>
void product(const LaunchContext& context, const FewRowsProduct& args) {
  for_flag(args.in % kPack<T> == 0 && all_aligned(args.x, args.weight), [&](auto aligned) {
    launch(stream_of(context), few_rows_kernel<kRows, aligned.value, T>,
           dim3(static_cast<unsigned>(blocks_for(args.out, kWarps * kOutputs<kRows>))), dim3(kThreads), 0, args);
  });
}

}  // namespace

void few_rows_product_cuda(LaunchContext& context, const FewRowsProduct& args) {
  static_assert(kFewRows == 8);
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.rows == 1) return product<1, T>(context, args);
    args.rows <= 4 ? product<4, T>(context, args) : product<8, T>(context, args);
  });
}

}  // namespace slipstream::kernels
