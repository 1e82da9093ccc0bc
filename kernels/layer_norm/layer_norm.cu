// SPDX-License-Identifier: Apache-2.0
// Layer norm on CUDA.

#include "kernels/cuda/norm.cuh"
#include "kernels/layer_norm/layer_norm.h"

namespace slipstream::kernels {

void layer_norm_forward_cuda(LaunchContext& context, const LayerNormForward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    norm_forward<true>(context, NormForward<T>{static_cast<const T*>(args.x), static_cast<const T*>(args.delta),
                                               static_cast<T*>(args.sum), static_cast<const T*>(args.weight),
                                               static_cast<const T*>(args.bias), static_cast<T*>(args.y), args.mean,
                                               args.inv_std, args.rows, args.width, args.eps});
  });
}

void layer_norm_backward_cuda(LaunchContext& context, const LayerNormBackward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    norm_backward<true>(context,
                        NormBackward<T>{static_cast<const T*>(args.dy), static_cast<const T*>(args.x),
                                        static_cast<const T*>(args.weight), args.mean, args.inv_std,
                                        static_cast<const T*>(args.residual), static_cast<T*>(args.dx), args.dweight,
                                        args.dbias, args.dx_sums, args.rows, args.width, args.accumulate});
  });
}

}  // namespace slipstream::kernels
