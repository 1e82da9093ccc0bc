// SPDX-License-Identifier: Apache-2.0
// GELU on CUDA.

#include "kernels/cuda/elementwise.cuh"
#include "kernels/gelu/gelu.cuh"
#include "kernels/gelu/gelu.h"

namespace slipstream::kernels {

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
