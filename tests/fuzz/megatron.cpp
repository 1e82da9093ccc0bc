// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of token files of Megatron-LM.

#include <algorithm>
#include <cstring>

#include "engine/data/datasets/foreign_tokens.h"
#include "tests/fuzz/targets.h"
#include "tests/fuzz/use_tokens.h"

namespace slipstream::fuzz {

Outcome megatron(std::string_view input) {
  uint16_t index_bytes = 0;
  std::memcpy(&index_bytes, input.data(), std::min(input.size(), sizeof index_bytes));
  input.remove_prefix(std::min(input.size(), sizeof index_bytes));
  const std::string_view index = input.substr(0, index_bytes);
  input_file("tokens.idx", index);
  const std::string path = input_file("tokens.bin", input.substr(index.size()));
  return outcome_of(input.size(), [&] {
    const data::Shards shards = data::open_foreign(path, {.format = DataFormat::megatron, .vocab_size = 1000});
    must_succeed([&] { use_tokens(*shards.tokens, shards.tokenizer->vocab_size()); });
  });
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::megatron);
