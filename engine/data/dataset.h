// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two splits of a run and the tokenizer that made them.

#include <cstdint>
#include <memory>
#include <string>

#include "engine/data/shards.h"
#include "engine/data/tokenizer.h"

namespace slipstream::data {

struct DatasetOptions {
  std::string train;                 // a text, NAME.bin, or a pattern of shards
  std::string validation;            // the same; empty: the last part of train is held out
  double validation_fraction = 0.1;  // of train, in [0, 1); 0 without `validation` means no validation split
  std::string tokenizer;  // "bytes", "chars", a file, or empty: the shards' tokenizer, "bytes" for a text; shards of an
                          // external tokenizer accept any word, and a file with as many ids
  int64_t sequence_length = 1;
  ShardCheck check = ShardCheck::whole;
};

struct Dataset {
  std::shared_ptr<const TokenSource> train;
  std::shared_ptr<const TokenSource> validation;  // null if there is none
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string hash;            // of the files, in the order train, validation: ranks with equal hashes read equal ids
  int64_t resident_bytes = 0;  // positions of ids in texts; texts and shards stay on disk
};

/// Blocks. Opens, checks and splits. A text is encoded when it is read. Without `validation` the
/// first floor(N (1 - validation_fraction)) of N tokens are for training, the rest for validation. With chars and two
/// texts the vocabulary has the characters of both. Throws: DataError (missing or damaged files, text and shards of
/// different tokenizers, a split shorter than sequence_length + 1 tokens); ConfigError (an unknown tokenizer).
Dataset open_dataset(const DatasetOptions& options);

}  // namespace slipstream::data
