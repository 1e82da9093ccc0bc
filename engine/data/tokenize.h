// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes the token shards of a text.

#include <cstdint>
#include <string>
#include <vector>

namespace slipstream::data {

struct TokenizeOptions {
  std::string text;  // path of the text
  std::string out;   // path of the shards without ".bin"
  std::string tokenizer = "bytes";
  int64_t shard_tokens = 0;  // tokens per shard; 0: one shard OUT.bin, else OUT-00000.bin, OUT-00001.bin, ..
};

struct TokenizeSummary {
  struct Shard {
    std::string path;  // of the .bin
    int64_t count = 0;
    int64_t size_bytes = 0;
    std::string hash;
  };
  std::string tokenizer;
  int32_t vocab_size = 0;
  int64_t text_bytes = 0;
  int64_t count = 0;  // tokens of all shards
  std::vector<Shard> shards;
};

/// Blocks. Every shard appears complete or not at all.
/// Throws: DataError (the text), ConfigError (the tokenizer; a shard that would replace the text), ResourceError (the
/// folder).
TokenizeSummary tokenize(const TokenizeOptions& options);

}  // namespace slipstream::data
