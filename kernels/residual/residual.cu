// SPDX-License-Identifier: Apache-2.0
// The residual sum on CUDA.

#include "kernels/cuda/elementwise.cuh"
#include "kernels/residual/residual.h"

namespace slipstream::kernels {
namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

}  // namespace

void residual_cuda(LaunchContext& context, const Residual& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    map_two(context, args.elems, static_cast<const T*>(args.a), static_cast<const T*>(args.b), static_cast<T*>(args.y),
            Sum{});
  });
}

}  // namespace slipstream::kernels
