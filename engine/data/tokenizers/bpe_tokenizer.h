// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tokenizer of merges: added tokens, a normalizer, words, byte-pair encoding, and decoding.

#include <memory>
#include <string>

#include "engine/data/tokenizers/added_tokens.h"
#include "engine/data/tokenizers/bpe.h"
#include "engine/data/tokenizers/normalizer.h"
#include "engine/data/tokenizers/tokenizer.h"
#include "engine/data/tokenizers/words.h"

namespace slipstream::data {

/// How tokens become text.
struct TokenDecoder {
  bool spaces = false;             // U+2581 in a token is a space
  bool bytes = false;              // a token such as <0x0A> is a byte
  bool strip_first_space = false;  // the text loses one space at its beginning
  bool strip_first_marks = false;  // the first token loses every U+2581
};

struct BpeParts {
  std::string name;  // identifies the content of the file
  BpeModel model;
  Normalizer normalizer;
  WordRules words;
  std::string word_prefix;                 // is put before the first word of a segment, unless the word begins with it
  bool word_prefix_at_begin_only = false;  // only at the beginning of the text
  bool mark_spaces = false;                // a space in a word becomes U+2581
  TokenDecoder decoder;
  std::vector<AddedToken> added;
  SpecialIds special;
  HuggingFaceFiles files;  // for programs that read the Hugging Face format
};

/// Does not check the parts, because the readers of the formats do.
std::shared_ptr<const Tokenizer> make_bpe_tokenizer(BpeParts parts);

}  // namespace slipstream::data
