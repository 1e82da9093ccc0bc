// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes tokenizers as tokenizer.json and tokenizer_config.json for other libraries.

#include <span>
#include <string>

#include "engine/data/tokenizers/bpe_tokenizer.h"

namespace slipstream::data {

/// Writes a byte-level encoding with one pattern of words. The pattern has no }+, which Oniguruma reads differently.
/// Pure.
HuggingFaceFiles hugging_face_files_of(const BpeParts& parts);
/// Writes 256 tokens, one per byte. Pure.
HuggingFaceFiles hugging_face_files_of_bytes();
/// Writes one token per character. `characters` is indexed by id. Pure.
HuggingFaceFiles hugging_face_files_of_chars(std::span<const std::string> characters);

}  // namespace slipstream::data
