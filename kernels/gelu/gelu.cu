// SPDX-License-Identifier: Apache-2.0
// GELU on CUDA.

#include "kernels/cuda/elementwise.cuh"
#include "kernels/gelu/gelu_cuda.h"

namespace slipstream::kernels {
namespace {

constexpr float kTwoRoots = 2.0f * 0.7978845608028654f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

struct Gelu {
  __device__ float operator()(float x) const { return x * sigmoid(kTwoRoots * (x + kCubic * x * x * x)); }
};
struct GeluGradient {
  __device__ float operator()(float dy, float x) const {
    const float s = sigmoid(kTwoRoots * (x + kCubic * x * x * x));
    return dy * (s + x * s * (1.0f - s) * kTwoRoots * (1.0f + 3.0f * kCubic * x * x));
  }
};

}  // namespace

void gelu_forward_cuda(LaunchContext& context, const GeluForward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    map(context, args.elems, static_cast<const T*>(args.x), static_cast<T*>(args.y), Gelu{});
  });
}

void gelu_backward_cuda(LaunchContext& context, const GeluBackward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    map_two(context, args.elems, static_cast<const T*>(args.dy), static_cast<const T*>(args.x),
            static_cast<T*>(args.dx), GeluGradient{});
  });
}

}  // namespace slipstream::kernels
