// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequences of token ids, and those that lie in shards on disk.
//
// A shard is NAME.bin, raw little-endian ids (uint16 if the vocabulary has at most 65536, else uint32), with NAME.json
// beside it: dtype, vocab_size, count, hash, tokenizer, and for chars the vocabulary (engine/data/sidecar.h).
// docs/how-to/token-shards.md makes one outside.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer.h"

namespace slipstream::data {

/// A read-only, contiguous sequence of token ids. Safe to read from several threads.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  /// Pure.
  virtual int64_t count() const = 0;
  /// Blocks. Ids begin .. begin + out.size() - 1; the range must lie in [0, count()).
  /// Throws: DataError if the disk fails or the file was changed since it was opened.
  virtual void read(int64_t begin, std::span<int32_t> out) const = 0;
};

/// The `count` ids from `begin` on of another source.
std::shared_ptr<const TokenSource> slice(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t count);

/// How much of a shard is looked at before it is used. Ids are checked against the vocabulary at every read in any
/// case.
enum class ShardCheck : uint8_t {
  whole,  // every id and the hash: one pass over the file
  size,   // sidecar and file size only
};

struct Shards {
  std::shared_ptr<const TokenSource> tokens;  // one after another, in the order of the paths
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string hash;  // of what the sidecars say of tokenizer, number and bytes of the ids: other ids have another
};

/// Is `path` a shard or a pattern of shards ("*.bin"), and not a text? Pure.
bool names_shards(std::string_view path);

/// Blocks. Opens NAME.bin, or all shards that a pattern with * or ? matches, sorted by name.
/// Throws: DataError naming the shard: no match, missing sidecar, size that is not count x width, empty, id outside the
/// vocabulary (with its index), other hash, shards of different tokenizers.
Shards open_shards(const std::string& path, ShardCheck check = ShardCheck::whole);

/// Writes one shard; it appears when finish() returns, the .bin before its .json.
class ShardWriter {
 public:
  /// `name` is the path without ".bin". Throws: ResourceError if the folder cannot be written.
  ShardWriter(const std::string& name, std::shared_ptr<const Tokenizer> tokenizer);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// Blocks. Every id must be in the vocabulary.
  void append(std::span<const int32_t> ids);
  /// Blocks. Returns the hash of the bytes. Throws: DataError if no id was appended; ResourceError.
  std::string finish();
  int64_t count() const;
  int64_t size_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slipstream::data
