// SPDX-License-Identifier: Apache-2.0
#pragma once
// The small JSON documents beside data as plain structs: sidecars of token shards, and vocabularies. The readers refuse
// duplicate keys, unknown keys and wrong types.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/document.h"

namespace slipstream::data {

/// NAME.json beside the token shard NAME.bin.
struct TokenShardInfo {
  std::string dtype;                    // "uint16" or "uint32", little-endian
  int64_t vocab_size = 0;               // 1 to 2^31 - 1
  uint64_t count = 0;                   // the number of tokens
  std::string hash;                     // XXH3-128 of the bytes of NAME.bin, 32 hexadecimal digits
  std::string tokenizer;                // "bytes", "chars", or the name of an external tokenizer
  std::vector<std::string> vocabulary;  // the text of every id, for chars; else empty
  std::string tokenizer_file = {};      // the tokenizer.json, relative to the shard's folder; empty: none
  uint64_t documents = 0;               // the documents that begin in the shard; 0: there is no NAME.documents

  bool operator==(const TokenShardInfo&) const = default;
};

std::string write_token_shard_info(const TokenShardInfo& info);
/// Checks form, types and ranges. The reader of the shard checks the shard's bytes. Throws: the owner's error.
TokenShardInfo parse_token_shard_info(const Document& document);

/// A tokenizer's sidecar: its name, its number of ids (0: unknown) and, for chars, the text of every id.
struct VocabularyInfo {
  std::string tokenizer;
  int64_t vocab_size = 0;
  std::vector<std::string> vocabulary;
};

std::string write_vocabulary_info(const VocabularyInfo& info);
VocabularyInfo parse_vocabulary_info(const Document& document);

}  // namespace slipstream::data
