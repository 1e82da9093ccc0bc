// SPDX-License-Identifier: Apache-2.0
#pragma once
// The small JSON documents beside data and weights, as plain structs: shard sidecars, vocabularies, safetensors headers,
// config.json. Strict: duplicate keys, unknown keys, wrong types, integers written as reals, deep nesting are refused.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/data/files.h"

namespace slipstream::data {

/// `where` of the parsers below names the document in errors: "PATH" or "the header of PATH".
struct Document {
  std::string_view text;
  std::string_view where;
  Owner owner = Owner::data;
};

/// NAME.json beside the token shard NAME.bin.
struct TokenShardInfo {
  std::string dtype;       // "uint16" or "uint32", little-endian
  int64_t vocab_size = 0;  // 1 to 2^31 - 1
  uint64_t count = 0;      // tokens
  std::string hash;        // XXH3-128 of the bytes of NAME.bin, 32 hexadecimal digits
  std::string tokenizer;   // "bytes" or "chars"
  std::vector<std::string> vocabulary;  // the text of every id, for chars; empty for bytes

  bool operator==(const TokenShardInfo&) const = default;
};

std::string write_token_shard_info(const TokenShardInfo& info);
/// Checks form, types and ranges; what the shard's bytes say is checked by their reader. Throws: the owner's error.
TokenShardInfo parse_token_shard_info(const Document& document);

/// A tokenizer's sidecar: its name and, for chars, the text of every id.
struct VocabularyInfo {
  std::string tokenizer;
  std::vector<std::string> vocabulary;
};

std::string write_vocabulary_info(const VocabularyInfo& info);
VocabularyInfo parse_vocabulary_info(const Document& document);

/// One tensor of a safetensors header, as written there: nothing but the JSON types is checked.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t begin_bytes = 0;  // into the buffer behind the header
  uint64_t end_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;                      // in the order of the file
  std::vector<std::pair<std::string, std::string>> metadata;  // of "__metadata__"
};

/// Compact JSON, metadata first (left out if empty), without padding.
std::string write_safetensors_header(const SafetensorsHeader& header);
SafetensorsHeader parse_safetensors_header(const Document& document);

/// A value that is itself JSON text: nested objects and mixed arrays of a config.json, kept as they are.
struct JsonText {
  std::string text;
  bool operator==(const JsonText&) const = default;
};
using ConfigValue = std::variant<std::nullptr_t, bool, int64_t, double, std::string, std::vector<std::string>, JsonText>;
using ConfigEntries = std::vector<std::pair<std::string, ConfigValue>>;

/// One object, one key per line, in the given order; reals round-trip.
std::string write_config(const ConfigEntries& entries);
ConfigEntries parse_config(const Document& document);

}  // namespace slipstream::data
