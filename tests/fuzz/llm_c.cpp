// SPDX-License-Identifier: Apache-2.0
// Fuzzes the readers of token files of llm.c and nanoGPT.

#include <filesystem>

#include "engine/data/datasets/foreign_tokens.h"
#include "tests/fuzz/targets.h"
#include "tests/fuzz/use_tokens.h"

namespace slipstream::fuzz {

Outcome llm_c(std::string_view input) {
  const std::string path = input_file("tokens.bin", input);
  const auto opened = [&](DataFormat format) {
    return outcome_of(input.size(), [&] {
      const data::Shards shards = data::open_foreign(path, {.format = format, .vocab_size = 50257});
      must_succeed([&] { use_tokens(*shards.tokens, shards.tokenizer->vocab_size()); });
    });
  };
  return first_of({opened(DataFormat::llm_c), opened(DataFormat::nanogpt)});
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::llm_c);
