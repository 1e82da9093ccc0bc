// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text files and their token ids, read from disk piece by piece: memory does not hold the text.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/data/datasets/text_input.h"
#include "engine/data/datasets/token_source.h"
#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::data {

/// A text that can be read anywhere: a file, or a nameless copy if it is packed or standard input. Safe to read from
/// several threads.
class TextFile {
 public:
  /// Blocks if it copies. Throws: DataError as TextInput; ResourceError as files::InputFile.
  explicit TextFile(const std::string& path, DataFormat named = DataFormat::automatic);

  const std::string& path() const { return file_.path(); }
  /// As in TextInput. Pure.
  DataFormat format() const { return format_; }
  bool takes_any_bytes() const { return takes_any_bytes_; }
  int64_t size_bytes() const { return file_.size_bytes(); }
  /// Blocks. Bytes [begin, end). Throws: DataError if the disk fails or the file was truncated.
  std::string read(int64_t begin, int64_t end) const;
  /// Blocks. `size_bytes` bytes from `begin` on, to `out`. Throws: as read().
  void read(int64_t begin, void* out, int64_t size_bytes) const { file_.read(begin, out, size_bytes); }
  void prefetch(int64_t begin, int64_t size_bytes) const { file_.prefetch(begin, size_bytes); }
  /// Reads from the begin to the end. Borrows this text.
  files::ReadBytes from_begin() const;
  /// Blocks. The whole text as for_pieces_of(). Throws: as read(); errors of `take` with the path added, if they are a
  /// DataError.
  void for_pieces(const TakePiece& take) const;
  /// Blocks. Encodes the whole text in windows of 1 MiB, larger only where a word is. Throws: as for_pieces().
  void encode(const Tokenizer& tokenizer, const TakeIds& take) const;

 private:
  explicit TextFile(TextInput&& stream);

  DataFormat format_;
  bool takes_any_bytes_;
  files::InputFile file_;
};

/// Blocks. Passes on all that `read` reads in consecutive pieces, which end between two UTF-8 characters if it is
/// UTF-8.
void for_pieces_of(const files::ReadBytes& read, const TakePiece& take);

/// Blocks. A whole text that is not JSON, for a command that reads one: `named` is its option --format.
/// Throws: DataError as TextFile and require_text(); for JSON, or more than `limit_bytes`.
std::string read_text(const std::string& path, DataFormat named, int64_t limit_bytes);

/// Throws `error` with the path of its text added, unless it has it.
[[noreturn]] void throw_with_path(const DataError& error, const std::string& path);

/// The ids of a text, encoded when they are read, for the next step on the loader's thread.
class TextTokens final : public TokenSource {
 public:
  static constexpr int64_t kMarksMax = 4 << 20;  // even

  /// Blocks: reads `text` twice, to hash it and to count its ids. Throws: DataError as Tokenizer::encode and
  /// require_text().
  TextTokens(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const TextFile> text,
             int64_t marks_max = kMarksMax);

  int64_t count() const override { return count_; }
  using TokenSource::read;
  void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const override;
  void prefetch(int64_t begin, int64_t count) const override;

  /// XXH3-128 of the text. Pure.
  const std::string& hash() const { return hash_; }
  /// Memory for the positions of ids in the text: at most 64 MiB; none if every id is a byte. Pure.
  int64_t resident_bytes() const { return std::ssize(marks_) * static_cast<int64_t>(sizeof(Mark)); }

 private:
  /// A place where the text can be cut.
  struct Mark {
    int64_t id = 0;    // ids before it
    int64_t byte = 0;  // bytes before it
  };
  /// The last mark at or before id `begin`, and the first at or behind id `end`. Pure.
  std::pair<Mark, Mark> around(int64_t begin, int64_t end) const;
  /// Notes the end of a piece. At `marks_max` every second mark is dropped.
  void mark(Mark end, int64_t marks_max);
  /// The ids between two marks; false if the text up to `end_byte` does not contain the second.
  bool read_between(const Mark& begin, const Mark& end, int64_t end_byte, std::vector<int32_t>& ids) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const TextFile> text_;
  std::string hash_;
  int64_t count_ = 0;
  int64_t mark_ids_ = 0;     // least ids between two marks
  std::vector<Mark> marks_;  // from the begin to the end of the text
};

}  // namespace slipstream::data
