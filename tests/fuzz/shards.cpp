// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of token shards and of their sidecars.

#include "engine/data/shards.h"

#include <algorithm>

#include "tests/fuzz/targets.h"

namespace slipstream::fuzz {
namespace {

void use(const data::Shards& shards) {
  std::vector<int32_t> ids(64);
  const int32_t vocab_size = shards.tokenizer->vocab_size();
  for (int64_t begin = 0; begin < shards.tokens->count(); begin += std::ssize(ids)) {
    ids.resize(static_cast<size_t>(std::min<int64_t>(64, shards.tokens->count() - begin)));
    shards.tokens->read(begin, ids);
    require(std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= 0 && id < vocab_size; }),
            "an id is not in the vocabulary");
  }
}

}  // namespace

Outcome shards(std::string_view input) {
  const size_t nul = std::min(input.find('\0'), input.size());
  input_file("shard.json", input.substr(0, nul));
  const std::string path = input_file("shard.bin", input.substr(std::min(nul + 1, input.size())));
  const Outcome whole = outcome_of(input.size(), [&] {
    const data::Shards shards = data::open_shards(path);
    must_succeed([&] { use(shards); });
  });
  // Reads check the ids of a shard that was not checked before.
  return first_of({whole, outcome_of(input.size(), [&] { use(data::open_shards(path, data::ShardCheck::size)); })});
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::shards);
