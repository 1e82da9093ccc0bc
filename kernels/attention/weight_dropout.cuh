// SPDX-License-Identifier: Apache-2.0
#pragma once
// Dropout of attention's weights on CUDA: AttentionDropout in the form of the device.

#include "kernels/attention/attention.h"
#include "kernels/cuda/philox.cuh"

namespace slipstream::kernels {

/// The random streams of a sequence and a head.
struct DropoutHead {
  DropoutSample sample;
  uint64_t key;
};

struct WeightDropout {
  const DropoutSample* samples = nullptr;
  uint64_t key = 0;  // of the first head of this rank
  uint32_t threshold = 0;
  float scale = 1;
  Positions queries = {}, keys = {};

  /// Takes the arguments of AttentionForward or AttentionBackward. Without dropout, factor() must not be called.
  template <typename Args>
  explicit WeightDropout(const Args& all) : queries(all.queries), keys(all.keys) {
    if (all.dropout == nullptr) return;
    samples = all.dropout->samples;
    key = all.dropout->key + static_cast<uint64_t>(all.dropout->first_head);
    threshold = dropout_threshold(all.dropout->rate);
    scale = dropout_scale(all.dropout->rate);
  }

  /// Are all aligned fours of the block's keys fours of positions as well? One call of Philox then serves a whole four.
  template <typename Args>
  static bool in_fours(const Args& args) {
    const ContextChunks& keys = args.all.keys;
    return args.block.first_key % 4 == 0 && (keys.ranks == 1 || keys.chunk_tokens() % 4 == 0);
  }

  __device__ __forceinline__ DropoutHead of(int64_t sequence, int64_t head) const {
    return {samples[sequence], key + static_cast<uint64_t>(head)};
  }
  /// Word i decides about key 4 * four + i. `query` and the key are positions.
  __device__ __forceinline__ static void words_of(uint32_t (&words)[4], const DropoutHead& head, uint32_t query,
                                                  uint32_t four) {
    words[0] = four, words[1] = query, words[2] = head.sample.sequence, words[3] = head.sample.step;
    philox_words(words, head.key);
  }
  /// m / (1 - rate) of the weight about which a word decides.
  __device__ __forceinline__ float factor(uint32_t word) const { return word >= threshold ? scale : 0.0f; }
  /// m / (1 - rate) of a weight. query and token_of_key count the tokens of the ranks that hold them.
  __device__ __forceinline__ float factor(int64_t sequence, int64_t head, int64_t query, int64_t token_of_key) const {
    const uint32_t position = keys.of(token_of_key);
    uint32_t words[4];
    words_of(words, of(sequence, head), queries.of(query), position / 4);
    const uint32_t low = position % 2 == 0 ? words[0] : words[1], high = position % 2 == 0 ? words[2] : words[3];
    return factor(position % 4 < 2 ? low : high);
  }
};

}  // namespace slipstream::kernels
