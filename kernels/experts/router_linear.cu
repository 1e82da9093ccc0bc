// SPDX-License-Identifier: Apache-2.0
// The router's product on CUDA: a block per tile of the result, with float products of widened operands.

#include "kernels/experts/router_linear.h"

#include <algorithm>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/workspace.h"
#include "kernels/experts/tiles.cuh"

namespace slipstream::kernels {
namespace {

// The terms of a slice of the gradient of the weight. Few experts have few tiles, whose blocks would add all tokens one
// after another; the blocks of slices run at the same time.
constexpr int kSliceTokens = 512;

/// Block z computes the products of slice z, and writes them to matrix z of C.
template <Form kForm, typename A, typename B, typename C>
__global__ void __launch_bounds__(FloatTile::kThreads) router_kernel(Operands<A, B, C> o, int slice) {
  ptx::after_earlier_kernels();
  SLIP_DYNAMIC_SHARED(bytes);
  const FloatTile shared(bytes);
  if constexpr (kForm == Form::weight) {
    const int first = static_cast<int>(blockIdx.z) * slice;
    o.a += first * o.a_stride;
    o.b += first * o.b_stride;
    o.c += blockIdx.z * int64_t{o.m} * o.n;
    o.k = min(slice, o.k - first);
  }
  shared.template multiply<kForm>(o, static_cast<int>(blockIdx.x) * FloatTile::kRows,
                                  static_cast<int>(blockIdx.y) * FloatTile::kColumns);
}

/// to (+)= the sum of the slices, in order.
__global__ void __launch_bounds__(FloatTile::kThreads)
    sum_kernel(const float* slices, int count, int64_t elems, float* to, bool accumulate) {
  ptx::after_earlier_kernels();
  const int64_t i = int64_t{blockIdx.x} * FloatTile::kThreads + threadIdx.x;
  if (i >= elems) return;
  float sum = 0.0f;
  for (int s = 0; s < count; ++s) sum += slices[s * elems + i];
  to[i] = accumulate ? to[i] + sum : sum;
}

template <Form kForm, typename A, typename B, typename C>
void enqueue(LaunchContext& context, const Operands<A, B, C>& o, int slices = 1, int slice = 0) {
  launch(stream_of(context), router_kernel<kForm, A, B, C>,
         dim3(static_cast<unsigned>(blocks_for(o.m, FloatTile::kRows)),
              static_cast<unsigned>(blocks_for(o.n, FloatTile::kColumns)), static_cast<unsigned>(slices)),
         dim3(FloatTile::kThreads), FloatTile::kSharedBytes, o, slice);
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
  const int64_t elems = args.experts * args.width, size_bytes = bytes_of(elems, DType::f32);
  const int64_t slices = std::clamp<int64_t>(std::min(blocks_for(tokens, kSliceTokens), kScratchBytes / size_bytes), 1,
                                             std::max(1, tokens));
  const int64_t slice = blocks_for(tokens, slices);
  const int count = static_cast<int>(slice == 0 ? 1 : blocks_for(tokens, slice));
  float* const sums = count == 1 ? args.dweight : static_cast<float*>(scratch_of(context));
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    enqueue<Form::weight, float, T, float>(context,
                                           {args.dlogits, static_cast<const T*>(args.x), sums, experts, width, width,
                                            experts, width, tokens, count == 1 && args.accumulate},
                                           count, static_cast<int>(slice));
  });
  if (count > 1)
    launch(stream_of(context), sum_kernel, dim3(static_cast<unsigned>(blocks_for(elems, FloatTile::kThreads))),
           dim3(FloatTile::kThreads), 0, sums, count, elems, args.dweight, args.accumulate);
}

}  // namespace slipstream::kernels
