// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts that forward and backward on tensor cores with mma.sync share: the rows of a thread block, the keys that
// its warps see, and launches (attention_mma_*.cu).

#include <type_traits>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/block.cuh"
#include "kernels/attention/fragment_dropout.cuh"
#include "kernels/attention/masks.cuh"
#include "kernels/attention/mma_tiles.cuh"

namespace slipstream::kernels {

/// The keys of a tile that the rows of a warp see.
template <int kTiles, int kKeys, bool kHides>
struct Seen {
  bool causal;
  int last;                   // the last key that the warp's first row sees, in the tile
  int begin;                  // the first key of the tile
  const Shared<int>& hidden;  // the number of keys that each row hides; unused without kHides
  int of_warp;                // the first row of the warp

  template <typename Block>
  __device__ __forceinline__ Seen(const Block& block, int64_t row, int64_t step, const Shared<int>& hidden_,
                                  int of_warp_)
      : causal(block.causal()),
        last(static_cast<int>((causal ? row : block.keys() - 1) - step * kKeys)),
        begin(static_cast<int>(step) * kKeys),
        hidden(hidden_),
        of_warp(of_warp_) {}

  /// A later row hides at least the keys that an earlier one hides.
  __device__ __forceinline__ bool any() const {
    return (!causal || last > -16 * kTiles) && (!kHides || hidden[of_warp] < begin + kKeys);
  }
  __device__ __forceinline__ bool all() const {
    return last >= kKeys - 1 && (!kHides || hidden[of_warp + 16 * kTiles - 1] <= begin);
  }
  __device__ __forceinline__ void hide(float (&of_keys)[kTiles][kKeys / 8][4], float value) const {
    const int row = lane_of() / 4, column = 2 * (lane_of() % 4);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = 8 * j + column + i % 2, of_row = 16 * t + row + 8 * (i / 2);
          if (key > last + (causal ? of_row : 0) || (kHides && begin + key < hidden[of_warp + of_row]))
            of_keys[t][j][i] = value;
        }
  }
};

/// The start of the rows from `first` on of a head in [B, H, T].
template <typename Args>
__device__ __forceinline__ int64_t row_of_head(const Args& all, int64_t head, int64_t first) {
  return (blockIdx.z * all.heads + head) * all.tokens + first;
}

/// The position of the queries of a thread block, and the steps through the keys that they see.
template <int kHead, int kRows, int kKeys>
struct QueryRows {
  int64_t begin, head, first_step, steps_end;
  int64_t first_row, kv_offset;  // rows of q and out; elements of k and v
  int64_t of_head;               // of lse and of the carried values

  template <typename Block, typename Args, typename Masks>
  __device__ __forceinline__ QueryRows(const Block& block, const Args& all, const Masks& masks)
      : begin((gridDim.x - 1 - blockIdx.x) * kRows),  // the longest rows come first, so that short ones fill the end
        head(blockIdx.y),
        first_step(masks.hidden.template keys_begin<kKeys>(blockIdx.z, begin) / kKeys),
        steps_end((block.seen_by(begin, kRows) + kKeys - 1) / kKeys),
        first_row(blockIdx.z * all.tokens + block.first_query()),
        kv_offset((blockIdx.z * all.tokens + block.first_key()) * all.kv_stride +
                  head / (all.heads / all.kv_heads) * kHead),
        of_head(row_of_head(all, head, block.first_query())) {}
};

/// hidden[i] = the number of keys that row begin + i hides. Threads read it after the next barrier.
template <int kRows, typename Masks>
__device__ __forceinline__ void store_hidden(const Shared<int>& hidden, const Masks& masks, int64_t begin) {
  if constexpr (Masks::kHides)
    for (int row = static_cast<int>(threadIdx.x); row < kRows; row += kThreads)
      hidden[row] = static_cast<int>(masks.hidden.before(blockIdx.z, begin + row));
}

/// Are these rows aligned to 16 bytes and of a head size with kernels? Dropout also needs aligned fours of keys.
template <typename Args>
bool fits(const Args& args) {
  const auto& all = args.all;
  return all.dtype == DType::bf16 && (all.head_dim == 64 || all.head_dim == 128) && all.q_stride % 8 == 0 &&
         all.kv_stride % 8 == 0 && all.out_stride % 8 == 0 && all_aligned(all.q, all.k, all.v, all.out) &&
         (all.dropout == nullptr || WeightDropout::in_fours(args));
}

/// Calls body(std::integral_constant) so that the head size becomes a template argument.
template <typename Body>
void for_head(int64_t head_dim, const Body& body) {
  head_dim == 64 ? body(std::integral_constant<int, 64>{}) : body(std::integral_constant<int, 128>{});
}

/// The number of blocks of kTiles tiles per warp.
template <int kTiles>
dim3 grid_of(int64_t rows, int64_t heads, int64_t batch) {
  return dim3(static_cast<unsigned>(blocks_for(rows, 16 * kTiles * kWarps)), static_cast<unsigned>(heads),
              static_cast<unsigned>(batch));
}

/// The shared memory of this many rows.
constexpr size_t bytes_of_rows(int rows, int head) { return size_t{2} * static_cast<size_t>(rows * head); }

/// The shared memory of one count for each of these rows, if there are any.
template <typename Masks>
constexpr size_t bytes_of_hidden(int rows) {
  return Masks::kHides ? sizeof(int) * static_cast<size_t>(rows) : 0;
}

}  // namespace slipstream::kernels
