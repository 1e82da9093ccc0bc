// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of JSON lines.

#include "engine/data/datasets/json_lines.h"
#include "engine/data/tokenizers/make_tokenizer.h"
#include "tests/fuzz/targets.h"
#include "tests/fuzz/use_tokens.h"

namespace slipstream::fuzz {

Outcome json_lines(std::string_view input) {
  const std::string path = input_file("lines.jsonl", input);
  return outcome_of(input.size(), [&] {
    const data::JsonLineTokens tokens(data::make_tokenizer("bytes", ""), std::make_shared<data::TextFile>(path), 1);
    must_succeed([&] { use_tokens(tokens, 256); });
  });
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::json_lines);
