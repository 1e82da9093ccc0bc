// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads rank files of the library tiktoken: one line per token, its bytes in base64, a space and its rank, which is its
// id.
//
// The files lack the pattern of words and the special tokens. Known by name: gpt2, r50k_base, p50k_base, cl100k_base,
// o200k_base. NAME.tiktoken with any other name needs NAME.json: {"pattern": "..", "special_tokens": {"..": id}}.

#include <memory>
#include <string>
#include <string_view>

#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::data {

struct TiktokenFile {
  std::string_view text;
  std::string where;            // its name in errors
  std::string stem;             // NAME
  std::string_view about_text;  // of NAME.json; empty: none
};

/// Pure. Throws: DataError naming the line or the key that is missing or wrong.
std::shared_ptr<const Tokenizer> parse_tiktoken(const TiktokenFile& file);

}  // namespace slipstream::data
