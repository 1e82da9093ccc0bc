// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of tiktoken rank files.

#include "engine/data/tokenizers/tiktoken.h"
#include "tests/fuzz/encode_some.h"
#include "tests/fuzz/targets.h"

namespace slipstream::fuzz {

Outcome ranks(std::string_view input) {
  const size_t nul = std::min(input.find('\0'), input.size());
  return outcome_of(input.size(), [&] {
    encode_some(*data::parse_tiktoken({.text = input.substr(std::min(nul + 1, input.size())),
                                       .where = "x.tiktoken",
                                       .stem = "x",
                                       .about_text = input.substr(0, nul)}));
  });
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::ranks);
