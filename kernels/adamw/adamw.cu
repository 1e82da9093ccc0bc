// SPDX-License-Identifier: Apache-2.0
// AdamW on CUDA: one flat launch over the range, 16 bytes a thread and operand.

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/entry_points.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;
// A pack of the bf16 copy.
constexpr int kElems = 8;

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) adamw_kernel(Adamw args) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems, count = args.elems - first;
  if (count <= 0) return;
  const AdamwScalars scalars = *args.scalars;
  float p[kElems], m[kElems], v[kElems], g[kElems];
  load_floats<kAligned>(args.gradient + first, count, g);
  load_floats<kAligned>(args.parameters + first, count, p);
  load_floats<kAligned>(args.m + first, count, m);
  load_floats<kAligned>(args.v + first, count, v);
#pragma unroll
  for (int i = 0; i < kElems; ++i) {
    const float gradient = scalars.clip * g[i];
    p[i] -= scalars.learning_rate * args.weight_decay * p[i];
    m[i] = args.beta1 * m[i] + (1.0f - args.beta1) * gradient;
    v[i] = args.beta2 * v[i] + (1.0f - args.beta2) * gradient * gradient;
    p[i] -= scalars.learning_rate * (m[i] * scalars.inv_bias1) / (sqrtf(v[i] * scalars.inv_bias2) + args.eps);
  }
  store_floats<kAligned>((args.updated ? args.updated : args.parameters) + first, count, p);
  store_floats<kAligned>(args.m + first, count, m);
  store_floats<kAligned>(args.v + first, count, v);
  if (args.working) store_floats<kAligned>(args.working + first, count, p);
}

}  // namespace

void adamw_cuda(LaunchContext& context, const Adamw& args) {
  for_flag(all_aligned(args.parameters, args.updated, args.m, args.v, args.gradient, args.working), [&](auto aligned) {
    launch(stream_of(context), adamw_kernel<aligned.value>, dim3(static_cast<unsigned>(blocks_for(args.elems, kThreads * kElems))),
           dim3(kThreads), 0, args);
  });
}

}  // namespace slipstream::kernels
