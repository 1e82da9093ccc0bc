// SPDX-License-Identifier: Apache-2.0
#pragma once
// Dropout of weights in the accumulators of tensor cores. These are fragments of 16 x 8, in which lane 4 g + c has rows
// g and g + 8 and columns 2c and 2c + 1 (mma.sync, and wgmma by warps of 16 rows).
//
// A call of Philox decides about four keys of a query. A fragment has as many fours as lanes, so every lane makes one
// call, and the lanes exchange the words that they need. WeightDropout::in_fours must hold.

#include "kernels/attention/mma_tiles.cuh"
#include "kernels/attention/weight_dropout.cuh"

namespace slipstream::kernels {

/// The factors of 16 queries down and 8 keys across. `query` and `key` are the first ones, as tokens of the ranks that
/// hold them; `key` is a multiple of 8. All lanes of a warp must call it.
__device__ __forceinline__ void factors_of_rows(float (&factors)[4], const WeightDropout& dropout,
                                                const DropoutHead& head, int64_t query, int64_t key) {
  const int lane = lane_of(), g = lane / 4, c = lane % 4;
  const bool odd = c % 2 == 1;  // an odd lane has the words of row g + 8, its even neighbour those of row g
  uint32_t words[4];
  WeightDropout::words_of(words, head, dropout.queries.of(query + g + (odd ? 8 : 0)),
                          dropout.keys.of(key + c / 2 * 4) / 4);
  // The odd lane has the last two keys of the four.
  const uint32_t theirs[2] = {__shfl_xor_sync(kWholeWarp, odd ? words[0] : words[2], 1),
                              __shfl_xor_sync(kWholeWarp, odd ? words[1] : words[3], 1)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t mine = odd ? words[2 + i] : words[i];
    factors[i] = dropout.factor(odd ? theirs[i] : mine);
    factors[2 + i] = dropout.factor(odd ? mine : theirs[i]);
  }
}

/// The factors of 16 keys down and 8 queries across. `key` is a multiple of 16.
__device__ __forceinline__ void factors_of_columns(float (&factors)[4], const WeightDropout& dropout,
                                                   const DropoutHead& head, int64_t query, int64_t key) {
  const int lane = lane_of(), g = lane / 4, c = lane % 4, i = g % 4;
  uint32_t words[4];  // of the four that has element i of this lane; element i of another lane is word g % 4 of its own
  WeightDropout::words_of(words, head, dropout.queries.of(query + 2 * c + i % 2),
                          dropout.keys.of(key + i / 2 * 8 + g / 4 * 4) / 4);
  const ptx::Words mine = gathered<4>(words);
#pragma unroll
  for (int element = 0; element < 4; ++element) factors[element] = dropout.factor(mine.word[element]);
}

}  // namespace slipstream::kernels
