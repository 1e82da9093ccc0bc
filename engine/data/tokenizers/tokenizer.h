// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text to token ids and back: bytes (256 ids), chars (the sorted distinct code points of a text), and the byte-pair
// encodings of tokenizer.json and tiktoken files. An external tokenizer is a name and a number of ids: its shards can
// be trained on, but it cannot encode text here.

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
/// Passes a whole text on in consecutive pieces that no character crosses.
using ForPieces = std::function<void(const TakePiece& take)>;
/// Receives consecutive ids, and the bytes of text that end with them. 0 bytes: text must not be cut behind these ids.
using TakeIds = std::function<void(std::span<const int32_t> ids, int64_t size_bytes)>;

/// A part of a text.
struct TextWindow {
  std::string_view text;
  bool first = true;  // it begins the text
  bool last = true;   // it ends the text
  int64_t begin = 0;  // bytes before it, for errors
  int64_t stop = -1;  // the first cut at or behind this byte ends the encoding; -1: none
};

/// -1: the tokenizer has none.
struct SpecialIds {
  int32_t begin_of_text = -1;
  int32_t end_of_text = -1;
  bool prompt_begins = false;  // a prompt begins with begin_of_text
};

/// Names and bytes of files in the Hugging Face format.
using HuggingFaceFiles = std::vector<std::pair<std::string, std::string>>;

/// Immutable, safe to share between threads.
class Tokenizer {
 public:
  static constexpr size_t kPieceIds = 1024;

  virtual ~Tokenizer() = default;
  /// "bytes" or "chars" as in `data.tokenizer`, the kind and hash of a file, else the name in a sidecar. Pure.
  virtual std::string name() const = 0;
  /// Ids are 0 .. vocab_size() - 1. Pure.
  virtual int32_t vocab_size() const = 0;
  /// True if it can encode and decode; false for an external tokenizer. Pure.
  virtual bool knows_text() const { return true; }
  /// False for ids below vocab_size() that no text has and decode() refuses. Pure.
  virtual bool has_text(int32_t /*id*/) const { return true; }
  /// True if every byte of a text is its own id. Pure.
  virtual bool ids_are_bytes() const { return false; }
  /// Bytes behind a part of a text that its ids usually depend on. Pure.
  virtual int64_t context_bytes() const { return 0; }
  virtual SpecialIds special() const { return {}; }
  /// Pure. tokenizer.json and tokenizer_config.json for other libraries; empty for an external tokenizer.
  virtual HuggingFaceFiles hugging_face_files() const { return {}; }

  /// The ids of a whole text. Pure. Throws: DataError with the byte offset if `text` has a character outside the
  /// vocabulary or is not UTF-8 (all but bytes), or without knows_text().
  std::vector<int32_t> encode(std::string_view text) const;
  /// The same for a part of a text, passed to `take` in pieces of at most kPieceIds. Returns the bytes of text done:
  /// with `last` all, else those up to the last cut. A cut follows at least kPieceIds ids, `stop`, or the end of the
  /// text. The ids before it do not depend on the text behind it. The text behind it, encoded as a window that is not
  /// `first`, has the same ids and, without `stop`, the same cuts.
  virtual int64_t encode_window(const TextWindow& window, const TakeIds& take) const = 0;
  /// Pure. Throws: DataError naming the id and its index if it is not in the vocabulary, or without knows_text().
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// The text of every id, for the sidecar of chars; else empty. Pure.
  virtual std::vector<std::string> vocabulary() const = 0;
};

/// Begins the name of a tokenizer from a file; the hash of its tokenizer.json follows.
inline constexpr std::string_view kFileTokenizer = "tokenizer.json:";

}  // namespace slipstream::data
