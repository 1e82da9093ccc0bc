// SPDX-License-Identifier: Apache-2.0
// SwiGLU on CUDA: a thread processes 16 bytes of the gate and the same amount of the other half.

#include "kernels/cuda/common.cuh"
#include "kernels/swiglu/swiglu.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;

/// The position of a thread: threads count the packs of a row, and then the rows.
template <typename T>
struct DeviceAssignment {
  int64_t row, column;

  __device__ explicit DeviceAssignment(int64_t width) {
    const int64_t packs = (width + kPack<T> - 1) / kPack<T>;
    const int64_t pack = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    row = pack / packs;
    column = pack % packs * kPack<T>;
  }
};

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(int64_t rows, int64_t width, const T* gate_up, T* y) {
  ptx::after_earlier_kernels();
  const DeviceAssignment<T> at(width);
  if (at.row >= rows) return;
  const T* from = gate_up + at.row * 2 * width + at.column;
  float gate[kPack<T>], up[kPack<T>];
  load_floats<kAligned>(from, width - at.column, gate);
  load_floats<kAligned>(from + width, width - at.column, up);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) up[i] *= gate[i] * sigmoid(gate[i]);
  store_floats<kAligned>(y + at.row * width + at.column, width - at.column, up);
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(int64_t rows, int64_t width, const T* dy, const T* gate_up, T* dgate_up) {
  ptx::after_earlier_kernels();
  const DeviceAssignment<T> at(width);
  if (at.row >= rows) return;
  const int64_t offset = at.row * 2 * width + at.column;
  float gate[kPack<T>], up[kPack<T>], d[kPack<T>];
  load_floats<kAligned>(dy + at.row * width + at.column, width - at.column, d);
  load_floats<kAligned>(gate_up + offset, width - at.column, gate);
  load_floats<kAligned>(gate_up + offset + width, width - at.column, up);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const float s = sigmoid(gate[i]);
    const float dgate = d[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
    up[i] = d[i] * gate[i] * s;
    gate[i] = dgate;
  }
  store_floats<kAligned>(dgate_up + offset, width - at.column, gate);
  store_floats<kAligned>(dgate_up + offset + width, width - at.column, up);
}

template <typename T>
dim3 grid_of(int64_t rows, int64_t width) {
  return dim3(static_cast<unsigned>(blocks_for(rows * blocks_for(width, kPack<T>), kThreads)));
}

}  // namespace

void swiglu_forward_cuda(LaunchContext& context, const SwigluForward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(all_aligned(args.gate_up, args.y) && args.width % kPack<T> == 0, [&](auto aligned) {
      launch(stream_of(context), forward_kernel<aligned.value, T>, grid_of<T>(args.rows, args.width), dim3(kThreads), 0,
             args.rows, args.width, static_cast<const T*>(args.gate_up), static_cast<T*>(args.y));
    });
  });
}

void swiglu_backward_cuda(LaunchContext& context, const SwigluBackward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(all_aligned(args.dy, args.gate_up, args.dgate_up) && args.width % kPack<T> == 0, [&](auto aligned) {
      launch(stream_of(context), backward_kernel<aligned.value, T>, grid_of<T>(args.rows, args.width), dim3(kThreads),
             0, args.rows, args.width, static_cast<const T*>(args.dy), static_cast<const T*>(args.gate_up),
             static_cast<T*>(args.dgate_up));
    });
  });
}

}  // namespace slipstream::kernels
