// SPDX-License-Identifier: Apache-2.0
// The products of all experts on CUDA: one launch, whose blocks find their tiles from the offsets on the device.

#include "kernels/experts/grouped.h"

#include <algorithm>

#include "kernels/cuda/common.cuh"
#include "kernels/experts/tiles.cuh"

namespace slipstream::kernels {
namespace {

/// The arguments of every form: `left` are the rows of the first operand, `results` those of C.
template <typename T, typename C>
struct Grouped {
  const T* left;
  const T* right;
  C* results;
  const int32_t* offsets;
  int experts, in, out;
  bool accumulate;
};

/// The operands of an expert, with `rows` rows from `begin` on.
template <Form kForm, typename T, typename C>
__device__ __forceinline__ Operands<T, T, C> operands_of(const Grouped<T, C>& g, int expert, int64_t begin, int rows) {
  const int64_t weights = int64_t{g.in} * g.out;
  if constexpr (kForm == Form::forward)
    return {g.left + begin * g.in,
            g.right + expert * weights,
            g.results + begin * g.out,
            g.in,
            g.in,
            g.out,
            rows,
            g.out,
            g.in,
            g.accumulate};
  else if constexpr (kForm == Form::input)
    return {g.left + begin * g.out,
            g.right + expert * weights,
            g.results + begin * g.in,
            g.out,
            g.in,
            g.in,
            rows,
            g.in,
            g.out,
            g.accumulate};
  else
    return {g.left + begin * g.out,
            g.right + begin * g.in,
            g.results + expert * weights,
            g.out,
            g.in,
            g.in,
            g.out,
            g.in,
            rows,
            g.accumulate};
}

/// Tiles are numbered by expert, then by column, then by row, so that blocks which run at the same time share the
/// weights. A block has every gridDim.x-th tile and looks for its expert from that of the tile before.
template <typename Tile, Form kForm, typename T, typename C>
__global__ void __launch_bounds__(Tile::kThreads) grouped_kernel(Grouped<T, C> g) {
  ptx::after_earlier_kernels();
  SLIP_DYNAMIC_SHARED(bytes);
  const Tile shared(bytes);
  int expert = 0;
  int64_t first = 0;  // the number of the expert's first tile
  for (int64_t tile = blockIdx.x;; tile += gridDim.x) {
    Operands<T, T, C> o;
    int64_t down = 0;
    for (; expert < g.experts; ++expert) {
      const int begin = g.offsets[expert];
      o = operands_of<kForm>(g, expert, begin, g.offsets[expert + 1] - begin);
      down = (o.m + Tile::kRows - 1) / Tile::kRows;
      const int64_t tiles = down * ((o.n + Tile::kColumns - 1) / Tile::kColumns);
      if (tile < first + tiles) break;
      first += tiles;
    }
    if (expert == g.experts) return;  // the whole block
    if (o.k == 0 && g.accumulate) continue;
    const int64_t at = tile - first;
    shared.template multiply<kForm>(o, static_cast<int>(at % down) * Tile::kRows,
                                    static_cast<int>(at / down) * Tile::kColumns);
  }
}

/// Enqueues the kernel on as many blocks as the GPU runs at once, of at most `tiles`.
template <typename Tile, Form kForm, typename T, typename C>
void enqueue(LaunchContext& context, const Grouped<T, C>& g, int64_t tiles) {
  launch(stream_of(context), grouped_kernel<Tile, kForm, T, C>,
         dim3(static_cast<unsigned>(std::min<int64_t>(tiles, Tile::kBlocksAtOnce * multiprocessors()))),
         dim3(Tile::kThreads), Tile::kSharedBytes, g);
}

template <Form kForm, typename T, typename C, typename Args>
void run(LaunchContext& context, const Args& args, const Grouped<T, C>& g) {
  const auto with = [&](auto tile) {
    using Tile = typename decltype(tile)::type;
    if constexpr (kForm == Form::weight)
      enqueue<Tile, kForm>(context, g,
                           args.experts * blocks_for(args.out, Tile::kRows) * blocks_for(args.in, Tile::kColumns));
    else  // every expert has at most one tile that is not full
      enqueue<Tile, kForm>(context, g,
                           (args.max_rows / Tile::kRows + std::min(args.experts, args.max_rows)) *
                               blocks_for(kForm == Form::forward ? args.out : args.in, Tile::kColumns));
  };
  if constexpr (sizeof(T) == sizeof(float)) {
    with(std::type_identity<FloatTile>{});
  } else {
    for_flag(all_aligned(g.left, g.right) && args.in % 8 == 0 && args.out % 8 == 0,
             [&](auto aligned) { with(std::type_identity<TensorTile<aligned.value>>{}); });
  }
}

template <typename T, typename C, typename Args>
Grouped<T, C> grouped_of(const Args& args, const void* left, const void* right, void* results) {
  return {static_cast<const T*>(left),    static_cast<const T*>(right), static_cast<C*>(results),   args.offsets,
          static_cast<int>(args.experts), static_cast<int>(args.in),    static_cast<int>(args.out), false};
}

}  // namespace

void grouped_forward_cuda(LaunchContext& context, const GroupedForward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    run<Form::forward>(context, args, grouped_of<T, T>(args, args.x, args.weight, args.y));
  });
}

void grouped_backward_input_cuda(LaunchContext& context, const GroupedBackwardInput& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    run<Form::input>(context, args, grouped_of<T, T>(args, args.dy, args.weight, args.dx));
  });
}

void grouped_backward_weight_cuda(LaunchContext& context, const GroupedBackwardWeight& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    Grouped<T, float> g = grouped_of<T, float>(args, args.dy, args.x, args.dweight);
    g.accumulate = args.accumulate;
    run<Form::weight>(context, args, g);
  });
}

}  // namespace slipstream::kernels
