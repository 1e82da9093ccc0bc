// SPDX-License-Identifier: Apache-2.0
#pragma once
// Dropout of attention's weights on CUDA: AttentionDropout in the form of the device.

#include "kernels/attention/attention.h"
#include "kernels/cuda/philox.cuh"

namespace slipstream::kernels {

struct WeightDropout {
  const DropoutSample* samples = nullptr;
  uint64_t key = 0;  // of this rank's first head
  uint32_t threshold = 0;
  float scale = 1;
  Positions queries = {}, keys = {};

  /// Of AttentionForward or AttentionBackward. Without dropout factor() must not be called.
  template <typename Args>
  explicit WeightDropout(const Args& all) : queries(all.queries), keys(all.keys) {
    if (all.dropout == nullptr) return;
    samples = all.dropout->samples;
    key = all.dropout->key + static_cast<uint64_t>(all.dropout->first_head);
    threshold = dropout_threshold(all.dropout->rate);
    scale = dropout_scale(all.dropout->rate);
  }

  /// m / (1 - rate) of a weight; query and token_of_key count the tokens of the ranks that hold them.
  __device__ __forceinline__ float factor(int64_t sequence, int64_t head, int64_t query, int64_t token_of_key) const {
    const DropoutSample sample = samples[sequence];
    const uint32_t position = keys.of(token_of_key);
    uint32_t words[4] = {position / 4, queries.of(query), sample.sequence, sample.step};
    philox_words(words, key + static_cast<uint64_t>(head));
    const uint32_t low = position % 2 == 0 ? words[0] : words[1], high = position % 2 == 0 ? words[2] : words[3];
    return (position % 4 < 2 ? low : high) >= threshold ? scale : 0.0f;
  }
};

}  // namespace slipstream::kernels
