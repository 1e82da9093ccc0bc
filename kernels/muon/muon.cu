// SPDX-License-Identifier: Apache-2.0
// The element-wise passes of Muon on CUDA: flat launches, with 16 bytes of the narrowest operand per thread.

#include "kernels/cuda/common.cuh"
#include "kernels/muon/muon_passes.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;
// A pack of bf16.
constexpr int kElems = 8;

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) momentum_kernel(MuonMomentum args) {
  ptx::after_earlier_kernels();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems, count = args.elems - first;
  if (count <= 0) return;
  const float mu = args.mu, factor = (1.0f - mu) * args.scalars->clip;
  float g[kElems], m[kElems];
  load_floats<kAligned>(args.gradient + first, count, g);
  load_floats<kAligned>(args.momentum + first, count, m);
  const bool skips = args.scalars->clip < 0.0f;
#pragma unroll
  for (int i = 0; i < kElems; ++i) {
    if (skips) {
      g[i] = 0.0f;
      continue;
    }
    g[i] *= factor;
    m[i] = mu * m[i] + g[i];
    g[i] = args.nesterov ? mu * m[i] + g[i] : m[i];
  }
  store_floats<kAligned>(args.momentum + first, count, m);
  store_floats<kAligned>(args.direction + first, count, g);
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_kernel(const float* direction, const double* sum_squares, T* x, int64_t elems, double eps) {
  ptx::after_earlier_kernels();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems, count = elems - first;
  if (count <= 0) return;
  const double norm = sqrt(*sum_squares);
  const auto factor = static_cast<float>(1.0 / (norm < eps ? eps : norm));
  float values[kElems];
  load_floats<kAligned>(direction + first, count, values);
#pragma unroll
  for (int i = 0; i < kElems; ++i) values[i] *= factor;
  store_floats<kAligned>(x + first, count, values);
}

/// The flat index of a diagonal element is a multiple of k + 1.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads)
    polynomial_kernel(const T* gram, T* square, int64_t k, float a, float b, float c) {
  ptx::after_earlier_kernels();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems, count = k * k - first;
  if (count <= 0) return;
  int64_t diagonal = (k + 1 - first % (k + 1)) % (k + 1);  // the next diagonal element, counted from `first`
  float left[kElems], values[kElems];
  load_floats<kAligned>(gram + first, count, left);
  load_floats<kAligned>(square + first, count, values);
#pragma unroll
  for (int i = 0; i < kElems; ++i) {
    values[i] = b * left[i] + c * values[i];
    if (i != diagonal) continue;
    values[i] += a;
    diagonal += k + 1;
  }
  store_floats<kAligned>(square + first, count, values);
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) step_kernel(MuonStep args) {
  ptx::after_earlier_kernels();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems, count = args.elems - first;
  if (count <= 0) return;
  const float decay = args.scalars->decay, rate = args.scalars->learning_rate * args.scale;
  float p[kElems], x[kElems];
  load_floats<kAligned>(args.parameters + first, count, p);
  load_floats<kAligned>(static_cast<const T*>(args.x) + first, count, x);
  const bool skips = args.scalars->clip < 0.0f;
#pragma unroll
  for (int i = 0; i < kElems; ++i) p[i] = skips ? p[i] : decay * p[i] - rate * x[i];
  store_floats<kAligned>(args.updated + first, count, p);
  if (args.working) store_floats<kAligned>(args.working + first, count, p);
}

dim3 blocks_of(int64_t elems) { return dim3(static_cast<unsigned>(blocks_for(elems, kThreads * kElems))); }

}  // namespace

void muon_momentum_cuda(LaunchContext& context, const MuonMomentum& args) {
  for_flag(all_aligned(args.gradient, args.momentum, args.direction), [&](auto aligned) {
    launch(stream_of(context), momentum_kernel<aligned.value>, blocks_of(args.elems), dim3(kThreads), 0, args);
  });
}

void muon_normalize_cuda(LaunchContext& context, const MuonNormalize& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(all_aligned(args.direction, args.x), [&](auto aligned) {
      launch(stream_of(context), normalize_kernel<aligned.value, T>, blocks_of(args.elems), dim3(kThreads), 0,
             args.direction, args.sum_squares, static_cast<T*>(args.x), args.elems, static_cast<double>(args.eps));
    });
  });
}

void muon_polynomial_cuda(LaunchContext& context, const MuonPolynomial& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(all_aligned(args.gram, args.square), [&](auto aligned) {
      launch(stream_of(context), polynomial_kernel<aligned.value, T>, blocks_of(args.k * args.k), dim3(kThreads), 0,
             static_cast<const T*>(args.gram), static_cast<T*>(args.square), args.k, args.a, args.b, args.c);
    });
  });
}

void muon_step_cuda(LaunchContext& context, const MuonStep& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(all_aligned(args.parameters, args.updated, args.working, args.x), [&](auto aligned) {
      launch(stream_of(context), step_kernel<aligned.value, T>, blocks_of(args.elems), dim3(kThreads), 0, args);
    });
  });
}

}  // namespace slipstream::kernels
