// SPDX-License-Identifier: Apache-2.0
#pragma once
// Merges the files of a tokenizer's folder: the files beside a tokenizer.json name more tokens, as AutoTokenizer of
// transformers reads them.

#include <string>
#include <string_view>

#include "engine/base/json.h"

namespace slipstream::data {

/// The texts of the files in the folder; empty: the file is absent.
struct FilesBeside {
  std::string_view config;        // tokenizer_config.json
  std::string_view special_map;   // special_tokens_map.json, which counts only without added_tokens_decoder
  std::string_view added_tokens;  // added_tokens.json, which counts only without added_tokens_decoder
  std::string_view model;         // config.json of a model
};

/// Both documents in a form that is complete for programs that read no other file.
struct MergedTokenizer {
  Json tokenizer;      // tokenizer.json with all tokens in added_tokens
  Json config;         // tokenizer_config.json with the special tokens of all files; null: the folder has none
  bool added = false;  // tokens were added to `tokenizer`
  bool named = false;  // tokens were named in `config`
};

/// Pure. `where` names the tokenizer.json in errors. Tokens that it lacks get the next ids, as in the library. The
/// flags of added_tokens_decoder replace those of tokenizer.json. A document that is no tokenizer is returned
/// unchanged, and its reader refuses it.
/// Throws: DataError for a file that is no JSON object, and, with the token and both ids, where the files contradict
/// each other.
MergedTokenizer merge_tokenizer(Json tokenizer, const FilesBeside& beside, const std::string& where);

}  // namespace slipstream::data
