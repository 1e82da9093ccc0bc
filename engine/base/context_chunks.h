// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tokens of a sequence a rank of a context-parallel group holds, and which of its queries see whose keys. Pure.
//
// The sequence is cut into 2c equal chunks, and rank r of c holds chunk r ("early") and chunk 2c-1-r ("late"), one
// after the other: every rank then has the same number of (query, key) pairs under the causal mask (Brandon et al.
// 2023, arXiv:2311.09431). What makes this simple: with the keys of another rank no pair of chunks is ever cut by the
// diagonal. Of an earlier owner all queries see the early keys and none the late ones; of a later owner only the late
// queries see keys, and they see all.

#include <cstdint>

namespace slipstream {

/// Queries [first_query, +queries) meet keys [first_key, +keys), counted in the tokens that one rank holds of a
/// sequence.
/// Causal: query number i of these sees the keys up to number i; otherwise each sees all of them.
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
  int64_t tokens = 0;  // of a whole sequence; a multiple of 2 x ranks unless ranks is 1
  int ranks = 1;
  int rank = 0;

  int64_t chunk_tokens() const { return tokens / (2 * ranks); }
  int64_t local_tokens() const { return tokens / ranks; }
  /// Where the rank's early (0) and late (1) chunk begins in the sequence.
  int64_t begin(int which) const { return chunk_tokens() * (which == 0 ? rank : 2 * ranks - 1 - rank); }
  /// Position in the sequence of token `local` of this rank.
  int64_t position(int64_t local) const {
    return local < chunk_tokens() ? begin(0) + local : begin(1) + local - chunk_tokens();
  }
  /// Of whom the rank has the keys in step `step` of the ring: those of the next rank come next.
  int owner(int step) const { return (rank + step) % ranks; }
  /// What of this rank's queries and `owner`'s keys there is to compute; the same number of pairs for every other
  /// owner.
  AttentionBlock block(int owner) const {
    const int64_t chunk = chunk_tokens(), all = local_tokens();
    if (owner == rank) return {0, all, 0, all, true};
    if (owner < rank) return {0, all, 0, chunk, false};
    return {chunk, all - chunk, 0, all, false};
  }
};

}  // namespace slipstream
