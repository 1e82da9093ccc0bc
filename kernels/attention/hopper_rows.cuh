// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rows of a lane in the Hopper forward kernel: softmax, hidden keys, and the results.
//
// A lane of a warpgroup has parts of two rows of its warp: `lane` / 4, and the row 8 after it. Four lanes share a row.

#include "kernels/attention/attention.h"
#include "kernels/attention/block.cuh"
#include "kernels/attention/hopper_tiles.cuh"

namespace slipstream::kernels::hopper {

/// Reads the sums and the maxima that earlier blocks of keys left for the lane's rows among [first, end) of a head,
/// whose rows begin at `head`.
template <int kHead>
__device__ __forceinline__ void load_carried(Accumulator<kHead>& out, float (&largest)[2], float (&sum)[2],
                                             const AttentionBlockForward& args, int64_t head, int first, int end) {
  const int row = lane_of() / 4, column = 2 * (lane_of() % 4);
  load_sums<kHead>(out, args.carried.out + head * kHead, first, end);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first + 8 * half + row;
    if (query >= end) continue;
    // Scores are scaled within the exponents; the sum is distributed over the lanes of a row.
    largest[half] = args.carried.maximum[head + query] / args.all.scale;
    sum[half] = column == 0 ? args.carried.sum[head + query] : 0.0f;
  }
}

/// Writes the logarithms of the sums of the lane's rows, or with `carries` their sums and maxima for later blocks of
/// keys.
__device__ __forceinline__ void store_rows(const float (&largest)[2], const float (&sum)[2],
                                           const AttentionBlockForward& args, bool carries, int64_t head, int first,
                                           int end) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first + 8 * half + lane_of() / 4;
    if (lane_of() % 4 != 0 || query >= end) continue;
    if (carries) {
      args.carried.maximum[head + query] = largest[half] * args.all.scale;
      args.carried.sum[head + query] = sum[half];
    } else {
      args.all.lse[head + query] = largest[half] * args.all.scale + logf(sum[half]);
    }
  }
}

/// Writes the rounded results of the lane's rows into the tile in shared memory, for the warp that stores. `to`: the
/// row of the tile that is the lane's first.
template <int kHead, typename Tile>
__device__ __forceinline__ void round_result(const Tile& tile, const Accumulator<kHead>& out, const float (&sum)[2],
                                             int to) {
  const Shared<uint32_t> words(tile.bytes, Tile::kBytes / 4);
  ptx::make_again(to);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = 1.0f / sum[half];
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      const int at = 4 * j + 2 * half;
      words[Tile::word(to + 8 * half, j)] = ptx::bf16_pair(factor * out[at], factor * out[at + 1]);
    }
  }
  fence_async();
}

/// Hides the keys of a step that come after `last`, the last key that the warp's first row sees. In causal attention
/// each row sees one key more than the row before it.
template <int kKeys>
__device__ __forceinline__ void hide_after(Accumulator<kKeys>& scores, int last, bool causal) {
  const int row = lane_of() / 4, column = 2 * (lane_of() % 4);
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i)
    if (8 * (i / 4) + column + i % 2 > last + (causal ? row + 8 * (i / 2 % 2) : 0)) scores[i] = -kInfinity;
}

/// Hides the keys of a step, which begins with key `first`, that come before the oldest keys that the lane's rows see.
template <int kKeys>
__device__ __forceinline__ void hide_before(Accumulator<kKeys>& scores, const int (&oldest)[2], int first) {
  const int column = 2 * (lane_of() % 4);
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i)
    if (first + 8 * (i / 4) + column + i % 2 < oldest[i / 2 % 2]) scores[i] = -kInfinity;
}

/// Turns the scores of a step into weights and adds these to `sum`. `keep` becomes the factors for everything that
/// earlier steps added, because the largest score may have grown. kEmpty: a row may see no key.
template <int kKeys, bool kEmpty>
__device__ __forceinline__ void softmax(Accumulator<kKeys>& scores, float (&largest)[2], float (&sum)[2],
                                        float (&keep)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float highest = largest[half];
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
      highest = fmaxf(highest, fmaxf(scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]));
    highest = across_row<true>(highest);
    const float base_score = kEmpty && highest == -kInfinity ? 0.0f : highest;
    const float shift = base_score * scale;
    keep[half] = ptx::exp2_approx((largest[half] - base_score) * scale);
    largest[half] = highest;
    sum[half] *= keep[half];
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 4 * j + 2 * half; i < 4 * j + 2 * half + 2; ++i) {
        scores[i] = ptx::exp2_approx(scores[i] * scale - shift);
        sum[half] += scores[i];
      }
  }
}

}  // namespace slipstream::kernels::hopper
