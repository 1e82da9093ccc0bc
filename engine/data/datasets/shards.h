// SPDX-License-Identifier: Apache-2.0
#pragma once
// Token ids in shards on disk.
//
// A shard is NAME.bin, raw little-endian ids (uint16 if the vocabulary has at most 65536, else uint32), with NAME.json
// beside it: dtype, vocab_size, count, hash, tokenizer, and for chars the vocabulary (engine/data/sidecar.h). A shard
// of documents has NAME.documents, too: the index of the first token of every document that begins in it, as uint64.
// docs/how-to/token-shards.md shows how to write one with another program.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/datasets/token_source.h"
#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::data {

/// How much of a shard is checked before its use. Every read compares the ids with the vocabulary in any case.
enum class ShardCheck : uint8_t {
  whole,  // every id and the hash: one pass over the file
  size,   // only the sidecar and the size of the file
};

struct Shards {
  std::shared_ptr<const TokenSource> tokens;  // the shards one after another, in the order of the paths
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string hash;            // of the sidecars' tokenizers, counts and hashes; different ids have different hashes
  int64_t resident_bytes = 0;  // host memory
};

/// Blocks. Returns the files that a pattern with * or ? matches, sorted by name. A path without these characters is
/// returned itself.
/// Throws: DataError if there is none.
std::vector<std::string> matching_files(const std::string& pattern);

/// Returns true if `path` names a shard or a pattern of shards ("*.bin") and not a text. Pure.
bool names_shards(std::string_view path);

/// Blocks. Opens NAME.bin, or all shards that a pattern with * or ? matches, sorted by name.
/// Throws: DataError that names the shard: there is no match, the sidecar is missing, the size is not count x width,
/// the shard is empty, an id is outside of the vocabulary (with its index), the hash is wrong, or the tokenizers of the
/// shards differ.
Shards open_shards(const std::string& path, ShardCheck check = ShardCheck::whole);

/// Writes one shard. finish() makes it visible, the .bin before its .json, and removes an earlier .documents.
class ShardWriter {
 public:
  /// `name` is the path without ".bin". `tokenizer_file` is that of TokenShardInfo. Throws: ResourceError if the folder
  /// cannot be written.
  ShardWriter(const std::string& name, std::shared_ptr<const Tokenizer> tokenizer, std::string tokenizer_file = "");
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// Blocks. Appends ids, each of which must be in the vocabulary.
  void append(std::span<const int32_t> ids);
  /// Marks the next token as the beginning of a document. Pure.
  void begin_document();
  /// Blocks. Returns the hash of the bytes. Throws: DataError if no id was appended; ResourceError.
  std::string finish();
  int64_t count() const;
  int64_t size_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slipstream::data
