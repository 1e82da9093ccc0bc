// SPDX-License-Identifier: Apache-2.0
// RMS norm on CUDA.

#include "kernels/cuda/norm.cuh"
#include "kernels/rms_norm/rms_norm.h"

namespace slipstream::kernels {

void rms_norm_forward_cuda(LaunchContext& context, const RmsNormForward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    norm_forward<false>(
        context, NormForward<T>{static_cast<const T*>(args.x), static_cast<const T*>(args.delta),
                                static_cast<T*>(args.sum), static_cast<const T*>(args.weight), nullptr,
                                static_cast<T*>(args.y), nullptr, args.inv_rms, args.rows, args.width, args.eps});
  });
}

void rms_norm_backward_cuda(LaunchContext& context, const RmsNormBackward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    norm_backward<false>(
        context, NormBackward<T>{static_cast<const T*>(args.dy), static_cast<const T*>(args.x),
                                 static_cast<const T*>(args.weight), nullptr, args.inv_rms,
                                 static_cast<const T*>(args.residual), static_cast<T*>(args.dx), args.dweight, nullptr,
                                 nullptr, args.rows, args.width, args.accumulate});
  });
}

}  // namespace slipstream::kernels
