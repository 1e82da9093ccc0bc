// SPDX-License-Identifier: Apache-2.0
#pragma once
// Dropout of a block of attention's weights on the CPU. Only the *_cpu.cpp files of attention include it.

#include "kernels/attention/tile.h"
#include "kernels/common/philox_cpu.h"

namespace slipstream::kernels::SLIP_ISA {

/// factors[s * kBlock + i] = 0 or 1 / (1 - rate), for query first_query + i and key first_key + s of the rank's tokens.
template <typename Args>
inline void dropout_factors(const Args& all, int64_t sequence, int64_t head, int64_t first_query, int64_t first_key,
                            int64_t keys, float* factors) {
  const AttentionDropout& dropout = *all.dropout;
  const DropoutSample sample = dropout.samples[sequence];
  const uint64_t key = dropout.key + static_cast<uint64_t>(dropout.first_head + head);
  const uint32_t least_kept = dropout_threshold(dropout.rate);
  const float scale = dropout_scale(dropout.rate);
  alignas(64) uint32_t words[4][kBlock];  // of the queries, for four keys
  int64_t four = -1;
  for (int64_t s = 0; s < keys; ++s) {
    const int64_t position = all.keys.position(first_key + s);
    if (position / 4 != four) {
      four = position / 4;
      for (int64_t i = 0; i < kBlock; ++i) {
        words[0][i] = static_cast<uint32_t>(four);
        words[1][i] = static_cast<uint32_t>(all.queries.position(first_query + i));
        words[2][i] = sample.sequence;
        words[3][i] = sample.step;
      }
      philox_words(words[0], words[1], words[2], words[3], key);
    }
    const uint32_t* const word = words[position % 4];
    for (int64_t i = 0; i < kBlock; ++i) factors[s * kBlock + i] = word[i] >= least_kept ? scale : 0.0f;
  }
}

/// Multiplies kTileCols columns of `rows` rows of a block.
inline void multiply_columns(float* block, const float* factors, int64_t rows) {
  for (int64_t s = 0; s < rows; ++s)
    for (int64_t j = 0; j < kTileCols; j += kLanes)
      store(block + s * kBlock + j, load(block + s * kBlock + j) * load(factors + s * kBlock + j));
}

}  // namespace slipstream::kernels::SLIP_ISA
