// SPDX-License-Identifier: Apache-2.0
// Chunks of a sequence against the causal mask itself, pair by pair.

#include "engine/base/context_chunks.h"

#include <vector>

#include "tests/test.hpp"

using namespace slipstream;

namespace {

bool covers(const AttentionBlock& block, int64_t query, int64_t key) {
  const int64_t q = query - block.first_query, k = key - block.first_key;
  if (q < 0 || q >= block.queries || k < 0 || k >= block.keys) return false;
  return !block.causal || k <= q;
}

}  // namespace

TEST_CASE("the tokens of all ranks are the sequence, each once, and those of a rank are in order", "[engine]") {
  for (int ranks : {1, 2, 3, 4, 8})
    for (int64_t chunk : {1, 2, 5}) {
      std::vector<int> seen(static_cast<size_t>(2 * ranks * chunk), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const ContextChunks chunks{.tokens = 2 * ranks * chunk, .ranks = ranks, .rank = rank};
        REQUIRE(chunks.local_tokens() == 2 * chunk);
        for (int64_t t = 0; t < chunks.local_tokens(); ++t) {
          ++seen[static_cast<size_t>(chunks.position(t))];
          if (t > 0) CHECK(chunks.position(t) > chunks.position(t - 1));
        }
        CHECK(chunks.begin(0) == rank * chunk);
        CHECK(chunks.begin(1) == (2 * ranks - 1 - rank) * chunk);
      }
      CHECK(seen == std::vector<int>(seen.size(), 1));
    }
}

TEST_CASE("one rank holds a sequence in its own order", "[engine]") {
  for (int64_t tokens : {1, 2, 7, 64}) {
    const ContextChunks chunks{.tokens = tokens};
    for (int64_t t = 0; t < tokens; ++t) CHECK(chunks.position(t) == t);
    CHECK(chunks.block(0) == AttentionBlock{0, tokens, 0, tokens, true});
  }
}

TEST_CASE("the blocks of a ring are the causal mask: every pair that it allows once, no other", "[engine]") {
  for (int ranks : {1, 2, 3, 4, 5})
    for (int64_t chunk : {1, 3}) {
      const int64_t tokens = 2 * ranks * chunk;
      int64_t pairs = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ContextChunks own{.tokens = tokens, .ranks = ranks, .rank = rank};
        std::vector<int> owners(static_cast<size_t>(ranks), 0);
        for (int step = 0; step < ranks; ++step) {
          const ContextChunks other{.tokens = tokens, .ranks = ranks, .rank = own.owner(step)};
          ++owners[static_cast<size_t>(other.rank)];
          const AttentionBlock block = own.block(other.rank);
          CAPTURE(ranks, chunk, rank, other.rank);
          int64_t covered = 0;
          for (int64_t q = 0; q < own.local_tokens(); ++q)
            for (int64_t k = 0; k < other.local_tokens(); ++k) {
              CHECK(covers(block, q, k) == (other.position(k) <= own.position(q)));
              covered += covers(block, q, k);
            }
          CHECK(block.pairs() == covered);
          // Balance: every rank has the same work in every step, except for the diagonal of its own chunk.
          CHECK(covered == 2 * chunk * chunk + (step == 0 ? chunk : 0));
          pairs += covered;
        }
        CHECK(owners == std::vector<int>(owners.size(), 1));
        CHECK(own.owner(0) == rank);
      }
      CHECK(pairs == tokens * (tokens + 1) / 2);
    }
}
