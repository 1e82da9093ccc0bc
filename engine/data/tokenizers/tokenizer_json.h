// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads tokenizer.json, the format of the library Hugging Face tokenizers, with a byte-pair encoding.
//
// model: BPE of bytes (GPT-2, Llama 3, Qwen) or of characters with byte fallback (Llama 2, Mistral). normalizer: NFC,
// NFD, NFKC, NFKD, Replace of one character, Prepend. pre_tokenizer: Split, Digits, ByteLevel, Metaspace. Sequences of
// these are supported, too. truncation and padding concern batches and are ignored. The reader refuses everything else
// and names its path in the file.

#include <memory>
#include <string>
#include <string_view>

#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::data {

struct TokenizerJson {
  std::string_view text;
  std::string where;  // the name of the file in errors
  // The texts of the files beside it (merge_tokenizer.h); empty: the file is absent.
  std::string_view config_text;        // tokenizer_config.json
  std::string_view special_map_text;   // special_tokens_map.json
  std::string_view added_tokens_text;  // added_tokens.json
  std::string_view model_text;         // config.json
};

/// Pure. Throws: DataError that names the path of the first value that is missing, wrong or not supported, and as
/// merge_tokenizer() does.
std::shared_ptr<const Tokenizer> parse_tokenizer_json(const TokenizerJson& file);

/// The pattern of GPT-2, which a ByteLevel pre-tokenizer uses.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace slipstream::data
