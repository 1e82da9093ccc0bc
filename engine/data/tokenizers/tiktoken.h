// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads rank files of the library tiktoken. Each line has a token's bytes in base64, a space and the token's rank,
// which is its id.
//
// The files lack the pattern of words and the special tokens. The program knows those of gpt2, r50k_base, p50k_base,
// cl100k_base and o200k_base. NAME.tiktoken with any other name needs NAME.json: {"pattern": "..", "special_tokens":
// {"..": id}}.

#include <memory>
#include <string>
#include <string_view>

#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::data {

struct TiktokenFile {
  std::string_view text;
  std::string where;            // the name of the file in errors
  std::string stem;             // NAME
  std::string_view about_text;  // the text of NAME.json; empty: there is no such file
};

/// Pure. Throws: DataError that names the line or the key that is missing or wrong.
std::shared_ptr<const Tokenizer> parse_tiktoken(const TiktokenFile& file);

}  // namespace slipstream::data
