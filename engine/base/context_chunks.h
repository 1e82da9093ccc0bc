// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tokens of a sequence that a context-parallel rank holds, and the keys that its queries see. Pure.
//
// The sequence is cut into 2c equal chunks, and rank r of c holds chunk r ("early") and chunk 2c-1-r ("late"), in this
// order. Every rank then has the same number of (query, key) pairs under the causal mask (Brandon et al. 2023,
// arXiv:2311.09431). The diagonal of the mask never crosses two chunks of different ranks: all queries see an earlier
// owner's early keys and none of its late keys. Only the late queries see a later owner's keys, and they see all of
// them.

#include <cstdint>

namespace slipstream {

/// A block of scores: the queries [first_query, first_query + queries) and the keys [first_key, first_key + keys). Both
/// are indices into one rank's tokens of a sequence. If the block is causal, query i of the range sees keys 0 to i of
/// the range. Otherwise every query sees all keys of the range.
struct AttentionBlock {
  int64_t first_query = 0;
  int64_t queries = 0;
  int64_t first_key = 0;
  int64_t keys = 0;
  bool causal = true;

  int64_t pairs() const { return causal ? queries * (queries + 1) / 2 : queries * keys; }
  bool operator==(const AttentionBlock&) const = default;
};

struct ContextChunks {
  int64_t tokens = 0;  // the tokens of a whole sequence; a multiple of 2 x ranks unless ranks is 1
  int ranks = 1;
  int rank = 0;

  int64_t chunk_tokens() const { return tokens / (2 * ranks); }
  int64_t local_tokens() const { return tokens / ranks; }
  /// Returns the first position of the rank's early (0) or late (1) chunk in the sequence.
  int64_t begin(int which) const { return chunk_tokens() * (which == 0 ? rank : 2 * ranks - 1 - rank); }
  /// Returns the position in the sequence of token `local` of this rank.
  int64_t position(int64_t local) const {
    return local < chunk_tokens() ? begin(0) + local : begin(1) + local - chunk_tokens();
  }
  /// Returns the owner of the keys that the rank holds in ring step `step`. Each step moves to the next rank's keys.
  int owner(int step) const { return (rank + step) % ranks; }
  /// Returns the block of this rank's queries and the keys of `owner` that has to be computed. It has the same number
  /// of (query, key) pairs for every owner other than this rank.
  AttentionBlock block(int owner) const {
    const int64_t chunk = chunk_tokens(), all = local_tokens();
    if (owner == rank) return {0, all, 0, all, true};
    if (owner < rank) return {0, all, 0, chunk, false};
    return {chunk, all - chunk, 0, all, false};
  }
};

}  // namespace slipstream
