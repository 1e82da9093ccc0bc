// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ids of JSON lines.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/datasets/json_text.h"
#include "engine/data/datasets/text.h"

namespace slipstream::data {

/// The ids of all documents. They are encoded when they are read. The tokenizer's end-of-text id, if it has one,
/// follows each document.
class JsonLineTokens final : public TokenSource {
 public:
  /// Blocks: reads the file with `threads` threads to hash it and to count its ids. The documents are the strings
  /// `key`.
  /// Throws: DataError (lines that are no documents, as DocumentCount::add; a text that cannot be encoded; no ids).
  JsonLineTokens(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const TextFile> lines, int threads,
                 std::string key = "text");

  int64_t count() const override { return marks_.back().id; }
  bool has_documents() const override { return true; }
  using TokenSource::read;
  void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const override;
  void prefetch(int64_t begin, int64_t count) const override;
  /// Returns XXH3-128 of the file. Pure.
  const std::string& hash() const { return hash_; }
  const DocumentCount& documents() const { return documents_; }
  int64_t resident_bytes() const { return std::ssize(marks_) * static_cast<int64_t>(sizeof(Mark)); }

 private:
  /// The position of a line.
  struct Mark {
    int64_t id = 0;    // the ids before it
    int64_t byte = 0;  // the bytes before it
  };
  /// Returns the last mark at or before id `begin`. Pure.
  std::vector<Mark>::const_iterator before(int64_t begin) const;
  /// Returns the first mark at or after id `end`, which is at most count(). Pure.
  std::vector<Mark>::const_iterator after(int64_t end) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const TextFile> lines_;
  std::string key_;
  int32_t end_of_text_ = -1;
  DocumentCount documents_;
  std::string hash_;
  std::vector<Mark> marks_;  // the positions of some lines, and of the end of the file
};

}  // namespace slipstream::data
