// SPDX-License-Identifier: Apache-2.0
#pragma once
// The place at which tokenize continues after an interruption, with hashes of all that was read and written before it.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/files.h"
#include "engine/data/document_parts.h"
#include "engine/data/hash.h"
#include "engine/data/tokenize_options.h"

namespace slipstream::data {

/// The end of the last complete shard.
struct TokenizeProgress {
  std::string made_of;     // all that the ids depend on, but the bytes of the text
  DocumentPlace part;      // that the next token belongs to
  int64_t skip = 0;        // tokens of that part in complete shards
  int64_t documents = 0;   // that end before that part
  int64_t text_bytes = 0;  // at least all bytes of the text that complete shards depend on
  std::string text_hash;   // of these
  std::vector<TokenizeSummary::Shard> shards;
};

/// XXH3-128 of the first bytes of a file. Borrows the file.
class TextHash {
 public:
  explicit TextHash(const files::InputFile& file) : file_(file) {}
  /// Blocks. Hashes the first `size_bytes` bytes, at least as many as in the call before.
  std::string up_to(int64_t size_bytes);
  const files::InputFile& file() const { return file_; }
  /// The number of hashed bytes. Pure.
  int64_t size_bytes() const { return size_bytes_; }

 private:
  const files::InputFile& file_;
  Xxh3 hash_;
  int64_t size_bytes_ = 0;
};

/// Blocks. Writes OUT.progress.json, and hashes the sidecar and the documents of its last shard. Throws: ResourceError.
void write_progress(const TokenizeOptions& options, TokenizeProgress& progress);

/// Blocks. Replaces `progress` by that of OUT.progress.json if there is one. Reads the text before it, and all shards.
/// Throws: DataError if the file was changed or has another `made_of`, if the text before it is another one, or if a
/// shard is missing or was changed.
void read_progress(const TokenizeOptions& options, TextHash& text_hash, TokenizeProgress& progress);

}  // namespace slipstream::data
