// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts text to token ids and back. The tokenizers are bytes (256 ids), chars (the sorted distinct code points of a
// text), and the byte-pair encodings of tokenizer.json and tiktoken files. An external tokenizer is a name and a number
// of ids: a model can be trained on its shards, but it cannot encode text here.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace slipstream::data {

/// Receives a piece of a text and the number of bytes before it.
using TakePiece = std::function<void(std::string_view piece, int64_t begin)>;
/// Passes on a whole text in consecutive pieces, none of which splits a character.
using ForPieces = std::function<void(const TakePiece& take)>;
/// Receives consecutive ids, and the number of bytes of text that end with them. With 0 bytes, the text must not be cut
/// after these ids.
using TakeIds = std::function<void(std::span<const int32_t> ids, int64_t size_bytes)>;

/// A part of a text.
struct TextWindow {
  std::string_view text;
  bool first = true;  // it begins the text
  bool last = true;   // it ends the text
  int64_t begin = 0;  // the bytes before it, for errors
  int64_t stop = -1;  // the first cut at or after this byte ends the encoding; -1: no stop
};

/// The ids of special tokens; -1: the tokenizer has none.
struct SpecialIds {
  int32_t begin_of_text = -1;
  int32_t end_of_text = -1;
  bool prompt_begins = false;  // a prompt begins with begin_of_text
};

/// Names and bytes of files in the Hugging Face format.
using HuggingFaceFiles = std::vector<std::pair<std::string, std::string>>;

/// A tokenizer. Immutable, and may be shared between threads.
class Tokenizer {
 public:
  static constexpr size_t kPieceIds = 1024;

  virtual ~Tokenizer() = default;
  /// Returns "bytes" or "chars" as in `data.tokenizer`, the kind and hash of a file, or else the name in a sidecar.
  /// Pure.
  virtual std::string name() const = 0;
  /// The ids are 0 .. vocab_size() - 1. Pure.
  virtual int32_t vocab_size() const = 0;
  /// Returns true if the tokenizer can encode and decode, and false for an external one. Pure.
  virtual bool knows_text() const { return true; }
  /// Returns false for ids below vocab_size() that no text has and that decode() refuses. Pure.
  virtual bool has_text(int32_t /*id*/) const { return true; }
  /// Returns true if every byte of a text is its own id. Pure.
  virtual bool ids_are_bytes() const { return false; }
  /// Returns the bytes after a part of a text on which the part's ids usually depend. Pure.
  virtual int64_t context_bytes() const { return 0; }
  virtual SpecialIds special() const { return {}; }
  /// Pure. Returns tokenizer.json and tokenizer_config.json for other libraries, or nothing for an external tokenizer.
  virtual HuggingFaceFiles hugging_face_files() const { return {}; }

  /// Returns the ids of a whole text. Pure. Throws: DataError with the byte offset if `text` has a character outside of
  /// the vocabulary or is not UTF-8 (all tokenizers but bytes), and without knows_text().
  std::vector<int32_t> encode(std::string_view text) const;
  /// Does the same for a part of a text and passes the ids to `take` in pieces of at most kPieceIds. Returns the bytes
  /// of text that are done: with `last` all bytes, otherwise those up to the last cut. A cut follows at least kPieceIds
  /// ids, `stop`, or the end of the text. The ids before a cut do not depend on the text after it. The text after it,
  /// encoded as a window that is not `first`, has the same ids and, without `stop`, the same cuts.
  virtual int64_t encode_window(const TextWindow& window, const TakeIds& take) const = 0;
  /// Pure. Throws: DataError that names the id and its index if it is not in the vocabulary, and without knows_text().
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// Returns the text of every id for the sidecar of chars, and nothing for other tokenizers. Pure.
  virtual std::vector<std::string> vocabulary() const = 0;
};

/// The beginning of the name of a tokenizer from a file. The hash of its tokenizer.json follows.
inline constexpr std::string_view kFileTokenizer = "tokenizer.json:";

}  // namespace slipstream::data
