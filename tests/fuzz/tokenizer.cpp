// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of tokenizer.json.

#include "engine/data/tokenizers/tokenizer_json.h"
#include "tests/fuzz/encode_some.h"
#include "tests/fuzz/targets.h"

namespace slipstream::fuzz {

Outcome tokenizer(std::string_view input) {
  return outcome_of(input.size(), [&] {
    const auto read = data::parse_tokenizer_json({.text = input, .where = "tokenizer.json", .config_text = ""});
    encode_some(*read);
  });
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::tokenizer);
