// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys of a block that queries do not see although these keys are not later than the queries, on CUDA: keys outside
// of the window, or of earlier documents. Also the ranges of keys and queries that remain for tiles.
//
// Positions and beginnings of documents do not descend along the queries of a block, so a later query hides at least
// the keys that an earlier one hides. Two ranges follow from this. A tile of queries sees no key before the first key
// that its first query sees. No query after the last one that sees the last key of a tile of keys sees that tile. The
// diagonal of a causal block limits the other ends (AttentionBlock).

#include "kernels/attention/attention.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/philox.cuh"

namespace slipstream::kernels {

/// Queries and keys count from the beginning of the block.
struct HiddenKeys {
  const int32_t* document_begins;
  int64_t window, tokens;
  AttentionBlock block;
  Positions of_queries, of_keys;

  /// Takes the arguments of AttentionBlockForward or AttentionBlockBackward.
  template <typename Args>
  explicit HiddenKeys(const Args& args)
      : document_begins(args.all.document_begins),
        window(args.all.window),
        tokens(args.all.tokens),
        block(args.block),
        of_queries(args.all.queries),
        of_keys(args.all.keys) {}

  /// The number of keys before the first one that the query sees; it may exceed the block's keys. Rows after the last
  /// query hide what the last query hides.
  __device__ __forceinline__ int64_t before(int64_t sequence, int64_t query) const {
    const int64_t token = block.first_query + (query < block.queries ? query : block.queries - 1);
    int64_t oldest = document_begins == nullptr ? 0 : document_begins[sequence * tokens + token];
    const int64_t in_window = static_cast<int64_t>(of_queries.of(token)) + 1 - window;
    if (window > 0 && in_window > oldest) oldest = in_window;
    const int64_t count = of_keys.before(oldest) - block.first_key;
    return count > 0 ? count : 0;
  }
  /// The first key of the first tile of kKeys keys that a tile of queries sees. `query` is the first one of the tile.
  template <int kKeys>
  __device__ __forceinline__ int64_t keys_begin(int64_t sequence, int64_t query) const {
    return before(sequence, query) / kKeys * kKeys;
  }
  /// The end of the queries from `begin` on that see one of the keys before `end`, or `begin` if none does. All lanes
  /// of a warp must call it: each step of the search looks at 32 queries.
  __device__ __forceinline__ int64_t queries_end(int64_t sequence, int64_t begin, int64_t end) const {
    const int64_t last = (end < block.keys ? end : block.keys) - 1, lane = threadIdx.x % kWarp;
    int64_t low = begin, high = block.queries;  // queries before `low` see it, those from `high` on do not
    while (low < high) {
      const int64_t apart = (high - low + kWarp - 1) / kWarp, query = low + lane * apart;
      const bool sees = query < high && before(sequence, query) <= last;
      const int64_t seeing = __popc(__ballot_sync(kWholeWarp, sees));
      if (seeing == 0) return low;
      if (low + seeing * apart < high) high = low + seeing * apart;
      low += (seeing - 1) * apart + 1;
    }
    return low;
  }
};

}  // namespace slipstream::kernels
