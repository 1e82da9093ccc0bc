// SPDX-License-Identifier: Apache-2.0
#pragma once
// The properties of an accepted tokenizer.

#include <algorithm>
#include <string>
#include <vector>

#include "engine/data/tokenizers/tokenizer.h"
#include "tests/fuzz/trial.h"

namespace slipstream::fuzz {

/// Encodes a text to ids of the vocabulary, and decodes these.
inline void encode_some(const data::Tokenizer& tokenizer) {
  const std::string text = "a <s>b</s> é漢字 aaaa\n\n 12\xe2\x96\x81x";
  std::vector<int32_t> ids;
  try {
    ids = tokenizer.encode(text);
  } catch (const DataError&) {
    return;  // the pattern needs too many steps
  }
  require(std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= 0 && id < tokenizer.vocab_size(); }),
          "an id is not in the vocabulary");
  must_succeed([&] { tokenizer.decode(ids); });
}

}  // namespace slipstream::fuzz
