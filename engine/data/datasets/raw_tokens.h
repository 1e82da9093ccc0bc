// SPDX-License-Identifier: Apache-2.0
#pragma once
// Token ids as a file stores them: little-endian integers of one width, from an offset to the end.

#include <memory>
#include <string>
#include <vector>

#include "engine/base/files.h"
#include "engine/data/datasets/document_index.h"
#include "engine/data/datasets/token_source.h"

namespace slipstream::data {

enum class IdType : uint8_t { u8, u16, i16, u32, i32, i64 };

/// Pure.
constexpr int64_t size_of(IdType type) {
  return type == IdType::u8 ? 1 : type == IdType::i64 ? 8 : type == IdType::u32 || type == IdType::i32 ? 4 : 2;
}

struct RawTokensOptions {
  std::string noun = "file";  // "the NOUN PATH has the id .." in errors
  std::string advice;         // the end of an error: what to do with a damaged file
  IdType type = IdType::u16;
  bool records_width = true;  // the file, or a file beside it, records the type; otherwise the type is a guess
  int64_t offset_bytes = 0;   // the offset of the first id
  int64_t count = 0;          // the number of ids, which the file must hold
  int64_t vocab_size = 0;     // ids are 0 .. vocab_size - 1
  std::shared_ptr<const DocumentIndex> documents;  // null: unknown
};

class RawTokens final : public TokenSource {
 public:
  /// Throws: DataError if the type cannot hold all ids of the vocabulary.
  RawTokens(files::InputFile file, RawTokensOptions options);

  int64_t count() const override { return options_.count; }
  bool has_documents() const override { return options_.documents != nullptr; }
  using TokenSource::read;
  void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const override;
  void prefetch(int64_t begin, int64_t count) const override;
  /// Blocks. Returns the XXH3-128 of the whole file, including the bytes before the ids. With `checks`, every id is
  /// compared with the vocabulary. Throws: DataError as read(); for ids that look like halves of wider ones, unless the
  /// file records its type.
  std::string hash(bool checks) const;

 private:
  void widen(const char* bytes, int64_t begin, std::span<int32_t> out) const;

  files::InputFile file_;
  RawTokensOptions options_;
};

}  // namespace slipstream::data
