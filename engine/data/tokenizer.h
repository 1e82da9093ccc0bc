// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text to token ids and back: bytes (256 ids) and chars (the sorted distinct code points of a text). Any other
// tokenizer is external: a name and a number of ids. Its shards can be trained on; it cannot encode text here.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace slipstream::data {

/// Receives a piece of a text and the number of bytes before it.
using TakePiece = std::function<void(std::string_view piece, int64_t begin)>;
/// Passes a whole text on in consecutive pieces that no character crosses.
using ForPieces = std::function<void(const TakePiece& take)>;

/// Immutable, safe to share between threads.
class Tokenizer {
 public:
  static constexpr size_t kPieceIds = size_t{1} << 16;

  virtual ~Tokenizer() = default;
  /// "bytes" or "chars" as in `data.tokenizer`, else the name in a sidecar. Pure.
  virtual std::string name() const = 0;
  /// Ids are 0 .. vocab_size() - 1. Pure.
  virtual int32_t vocab_size() const = 0;
  /// True if it can encode and decode; false for an external tokenizer. Pure.
  virtual bool knows_text() const { return true; }
  /// True if every byte of a text is its own id. Pure.
  virtual bool ids_are_bytes() const { return false; }
  /// decode(encode(text)) == text, and text cut between two ids keeps its ids, so a window can be encoded alone. Pure.
  /// Throws: DataError with the byte offset if `text` has a character outside the vocabulary or is not UTF-8 (chars),
  /// or without knows_text().
  std::vector<int32_t> encode(std::string_view text) const;
  /// The same, passed to `take` in pieces of at most kPieceIds, so that memory never holds all ids. `begin`: the bytes
  /// before `text`, for errors.
  virtual void encode_pieces(std::string_view text, const std::function<void(std::span<const int32_t>)>& take,
                             int64_t begin = 0) const = 0;
  /// Pure. Throws: DataError naming the id and its index if it is not in the vocabulary, or without knows_text().
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// The text of every id, for a sidecar; empty for bytes, where the id is the byte. Pure.
  virtual std::vector<std::string> vocabulary() const = 0;
};

/// The file beside saved weights that restores the tokenizer.
inline constexpr const char* kTokenizerFile = "slipstream_tokenizer.json";

/// Makes the tokenizer that the run file names; "chars" takes its vocabulary from `texts`, so that every character of
/// any text has an id. Blocks as `texts` do.
/// Throws: ConfigError if `name` is unknown or a tokenizer.json (not yet supported); DataError if a text is not UTF-8.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, std::span<const ForPieces> texts);

/// The same for one text in memory. Pure.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, std::string_view text);

/// Restores a tokenizer from its name, vocabulary() and vocab_size() (0: unknown). `where` names their source in
/// errors. A name that is neither bytes nor chars gives one without knows_text(). Pure.
/// Throws: DataError for an inconsistent description: missing, repeated or unsorted characters, a wrong number of ids,
/// or a name alone.
std::shared_ptr<const Tokenizer> restore_tokenizer(std::string_view name, std::span<const std::string> vocabulary,
                                                   int64_t vocab_size, std::string_view where);

/// The JSON document of kTokenizerFile. Pure.
std::string write_tokenizer(const Tokenizer& tokenizer);

/// Blocks. Reads the output of write_tokenizer(). Throws: DataError.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path);

}  // namespace slipstream::data
