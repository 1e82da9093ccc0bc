// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys of a block that queries do not see although they are not behind them, on CUDA: keys outside of the window or
// of earlier documents.

#include "kernels/attention/attention.h"
#include "kernels/cuda/philox.cuh"

namespace slipstream::kernels {

/// Queries and keys count from the beginning of the block.
struct HiddenKeys {
  const int32_t* document_begins;
  int64_t window, tokens;
  AttentionBlock block;
  Positions of_queries, of_keys;

  /// Of AttentionBlockForward or AttentionBlockBackward.
  template <typename Args>
  explicit HiddenKeys(const Args& args)
      : document_begins(args.all.document_begins),
        window(args.all.window),
        tokens(args.all.tokens),
        block(args.block),
        of_queries(args.all.queries),
        of_keys(args.all.keys) {}

  /// Number of the keys before the first one that the query sees: none for rows behind the last query.
  __device__ __forceinline__ int64_t before(int64_t sequence, int64_t query) const {
    if (query >= block.queries) return 0;
    const int64_t token = block.first_query + query;
    int64_t oldest = document_begins == nullptr ? 0 : document_begins[sequence * tokens + token];
    const int64_t in_window = static_cast<int64_t>(of_queries.of(token)) + 1 - window;
    if (window > 0 && in_window > oldest) oldest = in_window;
    return of_keys.before(oldest) - block.first_key;
  }
  /// End of the queries whose window has one of the keys before `end`.
  __device__ __forceinline__ int64_t queries_end(int64_t end) const {
    if (window == 0) return block.queries;
    const int64_t last = (end < block.keys ? end : block.keys) - 1, position = of_keys.of(block.first_key + last);
    const int64_t queries = of_queries.before(position + window) - block.first_query;
    return queries < block.queries ? queries : block.queries;
  }
};

}  // namespace slipstream::kernels
