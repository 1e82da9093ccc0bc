// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels that compute every element from the elements at the same place of one or two inputs.
//
// A thread handles 16 bytes of the narrowest type. Outputs may be inputs, because a thread reads everything before it
// writes.

#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {

constexpr int kMapThreads = 256;

template <bool kAligned, typename In, typename Out, typename F>
__global__ void __launch_bounds__(kMapThreads) map_kernel(int64_t elems, const In* in, Out* out, F f) {
  ptx::after_earlier_kernels();
  constexpr int kElems = kPack < In >> kPack<Out> ? kPack<In> : kPack<Out>;
  const int64_t first = (int64_t{blockIdx.x} * kMapThreads + threadIdx.x) * kElems;
  if (first >= elems) return;
  float values[kElems];
  load_floats<kAligned>(in + first, elems - first, values);
#pragma unroll
  for (int i = 0; i < kElems; ++i) values[i] = f(values[i]);
  store_floats<kAligned>(out + first, elems - first, values);
}

template <bool kAligned, typename T, typename F>
__global__ void __launch_bounds__(kMapThreads) map_two_kernel(int64_t elems, const T* a, const T* b, T* out, F f) {
  ptx::after_earlier_kernels();
  constexpr int kElems = kPack<T>;
  const int64_t first = (int64_t{blockIdx.x} * kMapThreads + threadIdx.x) * kElems;
  if (first >= elems) return;
  float left[kElems], right[kElems];
  load_floats<kAligned>(a + first, elems - first, left);
  load_floats<kAligned>(b + first, elems - first, right);
#pragma unroll
  for (int i = 0; i < kElems; ++i) left[i] = f(left[i], right[i]);
  store_floats<kAligned>(out + first, elems - first, left);
}

/// Enqueues. out[i] = f(in[i]).
template <typename In, typename Out, typename F>
void map(const LaunchContext& context, int64_t elems, const In* in, Out* out, F f) {
  constexpr int kElems = kPack < In >> kPack<Out> ? kPack<In> : kPack<Out>;
  for_flag(all_aligned(in, out), [&](auto aligned) {
    launch(stream_of(context), map_kernel<aligned.value, In, Out, F>,
           dim3(static_cast<unsigned>(blocks_for(elems, kMapThreads * kElems))), dim3(kMapThreads), 0, elems, in, out,
           f);
  });
}

/// Enqueues. out[i] = f(a[i], b[i]).
template <typename T, typename F>
void map_two(const LaunchContext& context, int64_t elems, const T* a, const T* b, T* out, F f) {
  for_flag(all_aligned(a, b, out), [&](auto aligned) {
    launch(stream_of(context), map_two_kernel<aligned.value, T, F>,
           dim3(static_cast<unsigned>(blocks_for(elems, kMapThreads * kPack<T>))), dim3(kMapThreads), 0, elems, a, b,
           out, f);
  });
}

}  // namespace slipstream::kernels
