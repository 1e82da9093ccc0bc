// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of token shards, of their sidecars and of their indices of documents.

#include "engine/data/datasets/shards.h"

#include <algorithm>

#include "tests/fuzz/targets.h"
#include "tests/fuzz/use_tokens.h"

namespace slipstream::fuzz {
Outcome shards(std::string_view input) {
  const size_t nul = std::min(input.find('\0'), input.size());
  input_file("shard.json", input.substr(0, nul));
  const std::string_view ids = input.substr(std::min(nul + 1, input.size()));
  const std::string path = input_file("shard.bin", ids);
  input_file("shard.documents", ids.substr(ids.size() - std::min<size_t>(16, ids.size())));
  const Outcome whole = outcome_of(input.size(), [&] {
    const data::Shards shards = data::open_shards(path);
    must_succeed([&] { use_tokens(*shards.tokens, shards.tokenizer->vocab_size()); });
  });
  // Reads check the ids of a shard that was not checked before.
  return first_of({whole, outcome_of(input.size(), [&] {
                     const data::Shards shards = data::open_shards(path, data::ShardCheck::size);
                     use_tokens(*shards.tokens, shards.tokenizer->vocab_size());
                   })});
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::shards);
