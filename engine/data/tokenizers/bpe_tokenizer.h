// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tokenizer of merges: added tokens, normalizer, words, byte-pair encoding, and the way back to text.

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
  bool bytes = false;              // <0x0A> is a byte
  bool strip_first_space = false;  // the text loses one space at its begin
  bool strip_first_marks = false;  // the first token loses every U+2581
};

struct BpeParts {
  std::string name;  // of the file's content
  BpeModel model;
  Normalizer normalizer;
  WordRules words;
  std::string word_prefix;                 // before the first word of a segment, unless it begins with it
  bool word_prefix_at_begin_only = false;  // only at the begin of the text
  bool mark_spaces = false;                // a space in a word is U+2581
  TokenDecoder decoder;
  std::vector<AddedToken> added;
  SpecialIds special;
  HuggingFaceFiles files;  // for readers of the Hugging Face format
};

/// Checks nothing: the readers of the formats do.
std::shared_ptr<const Tokenizer> make_bpe_tokenizer(BpeParts parts);

}  // namespace slipstream::data
