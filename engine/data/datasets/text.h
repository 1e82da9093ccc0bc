// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text files and their token ids. They are read from disk piece by piece, so that memory never holds a whole text.

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

/// A text that can be read at any position: a file, or a nameless copy if it is packed or standard input. Several
/// threads may read it at once.
class TextFile {
 public:
  /// Blocks while it copies. Throws: DataError as TextInput; ResourceError as files::InputFile.
  explicit TextFile(const std::string& path, DataFormat named = DataFormat::automatic);

  const std::string& path() const { return file_.path(); }
  /// Returns the format as TextInput does. Pure.
  DataFormat format() const { return format_; }
  bool takes_any_bytes() const { return takes_any_bytes_; }
  int64_t size_bytes() const { return file_.size_bytes(); }
  /// Blocks. Returns the bytes [begin, end). Throws: DataError if the disk fails or the file was truncated.
  std::string read(int64_t begin, int64_t end) const;
  /// Blocks. Reads `size_bytes` bytes from `begin` on to `out`. Throws: as read().
  void read(int64_t begin, void* out, int64_t size_bytes) const { file_.read(begin, out, size_bytes); }
  void prefetch(int64_t begin, int64_t size_bytes) const { file_.prefetch(begin, size_bytes); }
  /// Returns a function that reads the text from its beginning to its end. The function borrows this text.
  files::ReadBytes from_begin() const;
  /// Blocks. Passes the whole text on as for_pieces_of() does. Throws: as read(); errors of `take`. A DataError gets
  /// the path added.
  void for_pieces(const TakePiece& take) const;
  /// Blocks. Encodes the whole text in windows of 1 MiB, which are larger only if a word is. Throws: as for_pieces().
  void encode(const Tokenizer& tokenizer, const TakeIds& take) const;

 private:
  explicit TextFile(TextInput&& stream);

  DataFormat format_;
  bool takes_any_bytes_;
  files::InputFile file_;
};

/// Blocks. Passes on all that `read` reads in consecutive pieces. They end between two characters if the text is UTF-8.
void for_pieces_of(const files::ReadBytes& read, const TakePiece& take);

/// Blocks. Returns a whole text that is not JSON, for a command that reads one. `named` is its option --format.
/// Throws: DataError as TextFile and require_text(); for JSON, or for more than `limit_bytes`.
std::string read_text(const std::string& path, DataFormat named, int64_t limit_bytes);

/// Throws `error` with the path of its text, which is added if it is missing.
[[noreturn]] void throw_with_path(const DataError& error, const std::string& path);

/// The ids of a text. They are encoded when they are read, which happens for the next step on the loader's thread.
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

  /// Returns XXH3-128 of the text. Pure.
  const std::string& hash() const { return hash_; }
  /// Returns the memory for the positions of ids in the text: at most 64 MiB, and none if every id is a byte. Pure.
  int64_t resident_bytes() const { return std::ssize(marks_) * static_cast<int64_t>(sizeof(Mark)); }

 private:
  /// A position at which the text can be split.
  struct Mark {
    int64_t id = 0;    // the ids before it
    int64_t byte = 0;  // the bytes before it
  };
  /// Returns the last mark at or before id `begin`, and the first mark at or after id `end`. Pure.
  std::pair<Mark, Mark> around(int64_t begin, int64_t end) const;
  /// Adds the end of a piece to the marks. At `marks_max` marks, every second mark is dropped.
  void mark(Mark end, int64_t marks_max);
  /// Reads the ids between two marks. Returns false if the text up to `end_byte` does not contain the second one.
  bool read_between(const Mark& begin, const Mark& end, int64_t end_byte, std::vector<int32_t>& ids) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const TextFile> text_;
  std::string hash_;
  int64_t count_ = 0;
  int64_t mark_ids_ = 0;     // the least ids between two marks
  std::vector<Mark> marks_;  // from the beginning to the end of the text
};

}  // namespace slipstream::data
