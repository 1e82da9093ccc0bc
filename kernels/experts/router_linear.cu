// SPDX-License-Identifier: Apache-2.0
// The router's product on CUDA: a block per tile of the result, with float products of widened operands.

#include "kernels/experts/router_linear.h"

#include "kernels/cuda/common.cuh"
#include "kernels/experts/tiles.cuh"

namespace slipstream::kernels {
namespace {

template <Form kForm, typename A, typename B, typename C>
__global__ void __launch_bounds__(FloatTile::kThreads) router_kernel(Operands<A, B, C> operands) {
  ptx::after_earlier_kernels();
  SLIP_DYNAMIC_SHARED(bytes);
  const FloatTile shared(bytes);
  shared.template multiply<kForm>(operands, static_cast<int>(blockIdx.x) * FloatTile::kRows,
                                  static_cast<int>(blockIdx.y) * FloatTile::kColumns);
}

template <Form kForm, typename A, typename B, typename C>
void enqueue(LaunchContext& context, const Operands<A, B, C>& o) {
  launch(stream_of(context), router_kernel<kForm, A, B, C>,
         dim3(static_cast<unsigned>(blocks_for(o.m, FloatTile::kRows)),
              static_cast<unsigned>(blocks_for(o.n, FloatTile::kColumns))),
         dim3(FloatTile::kThreads), FloatTile::kSharedBytes, o);
}

}  // namespace

void router_linear_cuda(LaunchContext& context, const RouterLinear& args) {
  const int tokens = static_cast<int>(args.tokens), width = static_cast<int>(args.width),
            experts = static_cast<int>(args.experts);
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    enqueue<Form::forward, T, T, float>(context, {static_cast<const T*>(args.x), static_cast<const T*>(args.weight),
                                                  args.logits, width, width, experts, tokens, experts, width, false});
  });
}

void router_linear_backward_input_cuda(LaunchContext& context, const RouterLinearBackwardInput& args) {
  const int tokens = static_cast<int>(args.tokens), width = static_cast<int>(args.width),
            experts = static_cast<int>(args.experts);
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    enqueue<Form::input, float, T, T>(
        context, {args.dlogits, static_cast<const T*>(args.weight), static_cast<T*>(args.dx), experts, width, width,
                  tokens, width, experts, args.accumulate});
  });
}

void router_linear_backward_weight_cuda(LaunchContext& context, const RouterLinearBackwardWeight& args) {
  const int tokens = static_cast<int>(args.tokens), width = static_cast<int>(args.width),
            experts = static_cast<int>(args.experts);
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    enqueue<Form::weight, float, T, float>(context, {args.dlogits, static_cast<const T*>(args.x), args.dweight, experts,
                                                     width, width, experts, width, tokens, args.accumulate});
  });
}

}  // namespace slipstream::kernels
