// SPDX-License-Identifier: Apache-2.0
// The weighted SwiGLU on CUDA: forward a thread per 16 bytes of the gate, backward a warp per row.

#include "kernels/cuda/common.cuh"
#include "kernels/experts/rows.cuh"
#include "kernels/experts/weighted_swiglu.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(WeightedSwigluForward args) {
  ptx::after_earlier_kernels();
  const PackOfRow<T> at(args.width);
  if (at.row >= rows_of(args.count, args.max_rows)) return;
  const T* from = static_cast<const T*>(args.gate_up) + at.row * 2 * args.width + at.column;
  const float weight = args.weights[at.row];
  float gate[kPack<T>], up[kPack<T>];
  load_floats<kAligned>(from, args.width - at.column, gate);
  load_floats<kAligned>(from + args.width, args.width - at.column, up);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) up[i] *= weight * gate[i] * sigmoid(gate[i]);
  store_floats<kAligned>(static_cast<T*>(args.y) + at.row * args.width + at.column, args.width - at.column, up);
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) backward_kernel(WeightedSwigluBackward args) {
  ptx::after_earlier_kernels();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, width = args.width;
  if (row >= rows_of(args.count, args.max_rows)) return;  // the whole warp
  const T* const dy = static_cast<const T*>(args.dy) + row * width;
  const T* const gates = static_cast<const T*>(args.gate_up) + row * 2 * width;
  T* const dgates = static_cast<T*>(args.dgate_up) + row * 2 * width;
  const float weight = args.weights[row];
  float total = 0.0f;
  for (int64_t at = lane * kPack<T>; at < width; at += kWarp * kPack<T>) {
    float gate[kPack<T>], up[kPack<T>], d[kPack<T>];
    load_floats<kAligned>(dy + at, width - at, d);
    load_floats<kAligned>(gates + at, width - at, gate);
    load_floats<kAligned>(gates + width + at, width - at, up);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const float s = sigmoid(gate[i]), scaled = d[i] * s;
      total += scaled * gate[i] * up[i];
      const float dgate = weight * scaled * up[i] * (1.0f + gate[i] * (1.0f - s));
      up[i] = weight * scaled * gate[i];
      gate[i] = dgate;
    }
    store_floats<kAligned>(dgates + at, width - at, gate);
    store_floats<kAligned>(dgates + width + at, width - at, up);
  }
  total = warp_sum(total);
  if (lane == 0) args.dweights[row] = total;
}

}  // namespace

void weighted_swiglu_forward_cuda(LaunchContext& context, const WeightedSwigluForward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(all_aligned(args.gate_up, args.y) && args.width % kPack<T> == 0, [&](auto aligned) {
      launch(stream_of(context), forward_kernel<aligned.value, T>,
             grid_of_packs<T>(args.max_rows, args.width, kThreads), dim3(kThreads), 0, args);
    });
  });
}

void weighted_swiglu_backward_cuda(LaunchContext& context, const WeightedSwigluBackward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(all_aligned(args.dy, args.gate_up, args.dgate_up) && args.width % kPack<T> == 0, [&](auto aligned) {
      launch(stream_of(context), backward_kernel<aligned.value, T>,
             dim3(static_cast<unsigned>(blocks_for(args.max_rows, kWarps))), dim3(kThreads), 0, args);
    });
  });
}

}  // namespace slipstream::kernels
