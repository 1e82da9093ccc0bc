// SPDX-License-Identifier: Apache-2.0
#pragma once
// GELU and its gradient of one element, for kernels that fuse them.

#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {

constexpr float kGeluTwoRoots = 2.0f * 0.7978845608028654f;  // 2 sqrt(2/pi)
constexpr float kGeluCubic = 0.044715f;

struct Gelu {
  __device__ float operator()(float x) const { return x * sigmoid(kGeluTwoRoots * (x + kGeluCubic * x * x * x)); }
};
/// The exponential and the reciprocal are approximate: about 10 instructions instead of 35, so that memory limits the
/// kernel.
struct GeluGradient {
  __device__ float operator()(float dy, float x) const {
    constexpr float kLog2E = 1.4426950408889634f, kSlope = 3.0f * kGeluTwoRoots * kGeluCubic;
    const float square = x * x;
    const float u = x * (square * (-kLog2E * kGeluTwoRoots * kGeluCubic) - kLog2E * kGeluTwoRoots);
    const float s = ptx::reciprocal_approx(1.0f + ptx::exp2_approx(u));
    return dy * (s + s * (x - x * s) * (square * kSlope + kGeluTwoRoots));
  }
};

}  // namespace slipstream::kernels
