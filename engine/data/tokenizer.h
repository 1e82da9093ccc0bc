// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text to token ids and back: bytes (256 ids) and chars (the sorted distinct code points of a text). Any other
// tokenizer is a name and a number of ids: shards that it made can be trained on, text stays outside.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace slipstream::data {

/// Immutable, safe to share between threads.
class Tokenizer {
 public:
  static constexpr size_t kPieceIds = size_t{1} << 16;

  virtual ~Tokenizer() = default;
  /// "bytes" or "chars": the word of `data.tokenizer`. Else what a sidecar calls it. Pure.
  virtual std::string name() const = 0;
  /// Ids are 0 .. vocab_size() - 1. Pure.
  virtual int32_t vocab_size() const = 0;
  /// Can it encode and decode? Not where only its name and its number of ids are known. Pure.
  virtual bool knows_text() const { return true; }
  /// decode(encode(text)) == text, and text cut between two ids has the same ids: a window is encoded alone. Pure.
  /// Throws: DataError with the byte offset if `text` has what the vocabulary lacks, or is not UTF-8 (chars), or
  /// without knows_text().
  std::vector<int32_t> encode(std::string_view text) const;
  /// The same, handed to `take` in pieces of at most kPieceIds, so that ids never exist all at once.
  virtual void encode_pieces(std::string_view text,
                             const std::function<void(std::span<const int32_t>)>& take) const = 0;
  /// Pure. Throws: DataError naming the id and its index if it is not in the vocabulary, or without knows_text().
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// The text of every id, for a sidecar; empty for bytes, where the id is the byte. Pure.
  virtual std::vector<std::string> vocabulary() const = 0;
};

/// The file beside saved weights that brings the tokenizer back.
inline constexpr const char* kTokenizerFile = "slipstream_tokenizer.json";

/// Makes the tokenizer that the run file calls `name`; "chars" takes its vocabulary from `text`. Pure.
/// Throws: ConfigError if `name` is unknown or a tokenizer.json (not yet supported); DataError if `text` is not UTF-8.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, std::string_view text);

/// The same with the vocabulary of several texts together: what appears in any of them has an id.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, std::span<const std::string_view> texts);

/// Brings back a tokenizer from its name, vocabulary() and vocab_size(), 0 if that is not said. `where` names their
/// source in errors. A name that is neither bytes nor chars gives one without knows_text(). Pure.
/// Throws: DataError if they are not what such a tokenizer gives: no or double or unsorted characters, another number
/// of ids, or a name alone.
std::shared_ptr<const Tokenizer> restore_tokenizer(std::string_view name, std::span<const std::string> vocabulary,
                                                   int64_t vocab_size, std::string_view where);

/// The JSON document of kTokenizerFile. Pure.
std::string write_tokenizer(const Tokenizer& tokenizer);

/// Blocks. Reads what write_tokenizer() wrote. Throws: DataError.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path);

}  // namespace slipstream::data
