// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokenizers as tokenizer.json and tokenizer_config.json, for other libraries.

#include <span>
#include <string>

#include "engine/data/tokenizers/bpe_tokenizer.h"

namespace slipstream::data {

/// A byte-level encoding with one pattern of words, without }+, which Oniguruma reads in another way. Pure.
HuggingFaceFiles hugging_face_files_of(const BpeParts& parts);
/// 256 tokens, one per byte. Pure.
HuggingFaceFiles hugging_face_files_of_bytes();
/// One token per character; `characters` by id. Pure.
HuggingFaceFiles hugging_face_files_of_chars(std::span<const std::string> characters);

}  // namespace slipstream::data
