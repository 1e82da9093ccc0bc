// SPDX-License-Identifier: Apache-2.0
// Reads a text file in pieces, and encodes the parts that are requested.

#include "engine/data/datasets/text.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/units.h"

namespace slipstream::data {

namespace {

constexpr int64_t kPieceBytes = kMiB;

/// Returns the bytes at the end of a piece that may begin a character of the next piece. Pure.
size_t unfinished(std::string_view piece) {
  for (size_t back = 1; back <= std::min<size_t>(3, piece.size()); ++back) {
    const auto byte = static_cast<unsigned char>(piece[piece.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;  // inside a character
    const size_t size = byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    return size > back ? back : 0;
  }
  return 0;
}

}  // namespace

void throw_with_path(const DataError& error, const std::string& path) {
  const std::string sentence = error.what(), shown = files::shown(path);
  if (sentence.find(shown) != std::string::npos) throw DataError("{}", sentence);
  throw DataError("{} (in {})", sentence, shown);
}

TextFile::TextFile(const std::string& path, DataFormat named) : TextFile(TextInput(path, named)) {}

TextFile::TextFile(TextInput&& stream)
    : format_(stream.format()), takes_any_bytes_(stream.takes_any_bytes()), file_(std::move(stream).as_file()) {}

std::string TextFile::read(int64_t begin, int64_t end) const {
  std::string bytes(static_cast<size_t>(end - begin), '\0');
  file_.read(begin, bytes.data(), end - begin);
  return bytes;
}

std::string read_text(const std::string& path, DataFormat named, int64_t limit_bytes) {
  const TextFile file(path, named);
  const std::string shown = files::shown(file.path());
  if (named == DataFormat::automatic && file.format() == DataFormat::jsonl)
    throw DataError(
        "[data] {} is JSON, need a text. Extract it, for instance: jq -j .text {} > text.txt. If the JSON is the text, "
        "give --format text.",
        shown, files::shown(path));
  if (file.size_bytes() > limit_bytes)
    throw DataError("[data] {} has {}, need at most {}. Give a part of it.", shown, format_bytes(file.size_bytes()),
                    format_bytes(limit_bytes));
  std::string text = file.read(0, file.size_bytes());
  if (!file.takes_any_bytes() && named == DataFormat::automatic) try {
      require_text(text, 0, true, true);
    } catch (const DataError& error) {
      throw_with_path(error, file.path());
    }
  return text;
}

void for_pieces_of(const files::ReadBytes& read, const TakePiece& take) {
  std::string bytes(static_cast<size_t>(kPieceBytes), '\0');
  size_t kept = 0;  // the bytes of a character that the end of the previous piece has split
  for (int64_t begin = 0, got = -1; got != 0;) {
    const auto room = kPieceBytes - static_cast<int64_t>(kept);
    got = read(bytes.data() + kept, room);
    std::string_view piece(bytes.data(), kept + static_cast<size_t>(got));
    if (got == room) piece.remove_suffix(unfinished(piece));
    if (!piece.empty()) take(piece, begin);
    begin += std::ssize(piece);
    kept += static_cast<size_t>(got) - piece.size();
    std::memmove(bytes.data(), piece.data() + piece.size(), kept);
  }
}

files::ReadBytes TextFile::from_begin() const {
  return [this, at = int64_t{0}](char* out, int64_t size_bytes) mutable {
    const int64_t got = std::min(size_bytes, this->size_bytes() - at);
    read(at, out, got);
    at += got;
    return got;
  };
}

void TextFile::for_pieces(const TakePiece& take) const {
  for_pieces_of(from_begin(), [&](std::string_view piece, int64_t begin) {
    try {
      take(piece, begin);
    } catch (const DataError& error) {
      throw_with_path(error, path());
    }
  });
}

void TextFile::encode(const Tokenizer& tokenizer, const TakeIds& take) const {
  std::string bytes;
  int64_t window_bytes = kPieceBytes;
  for (int64_t begin = 0; begin < size_bytes();) {
    const int64_t size = std::min(window_bytes, size_bytes() - begin);
    bytes.resize(static_cast<size_t>(size));
    file_.read(begin, bytes.data(), size);
    int64_t done = 0;
    try {
      done = tokenizer.encode_window(
          {.text = bytes, .first = begin == 0, .last = begin + size == size_bytes(), .begin = begin}, take);
    } catch (const DataError& error) {
      throw_with_path(error, path());
    }
    window_bytes = done > 0 ? kPieceBytes : 2 * size;
    begin += done;
  }
}

TextTokens::TextTokens(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const TextFile> text,
                       int64_t marks_max)
    : tokenizer_(std::move(tokenizer)), text_(std::move(text)), mark_ids_(static_cast<int64_t>(Tokenizer::kPieceIds)) {
  Xxh3 hash;
  text_->for_pieces([&](std::string_view piece, int64_t begin) {
    hash.update(piece.data(), std::ssize(piece));
    if (text_->takes_any_bytes()) return;
    require_text(piece, begin, tokenizer_->ids_are_bytes(), begin + std::ssize(piece) == text_->size_bytes());
  });
  hash_ = hash.hex();
  if (tokenizer_->ids_are_bytes()) {
    count_ = text_->size_bytes();
    return;
  }
  marks_.push_back({});
  int64_t byte = 0;
  text_->encode(*tokenizer_, [&](std::span<const int32_t> ids, int64_t size_bytes) {
    count_ += std::ssize(ids);
    byte += size_bytes;
    if (size_bytes > 0 && byte < text_->size_bytes()) mark({count_, byte}, marks_max);
  });
  SLIP_ASSERT(byte == text_->size_bytes());
  marks_.push_back({count_, byte});
  marks_.shrink_to_fit();
}

void TextTokens::mark(Mark end, int64_t marks_max) {
  if (end.id - marks_.back().id < mark_ids_) return;
  if (std::ssize(marks_) == marks_max) {
    for (size_t i = 0; 2 * i < marks_.size(); ++i) marks_[i] = marks_[2 * i];
    marks_.resize((marks_.size() + 1) / 2);
    mark_ids_ *= 2;
    if (end.id - marks_.back().id < mark_ids_) return;
  }
  marks_.push_back(end);
}

bool TextTokens::read_between(const Mark& begin, const Mark& end, int64_t end_byte, std::vector<int32_t>& ids) const {
  ids.clear();
  const std::string text = text_->read(begin.byte, end_byte);
  int64_t byte = begin.byte, count = -1;
  const auto take = [&](std::span<const int32_t> piece, int64_t size_bytes) {
    byte += size_bytes;
    ids.insert(ids.end(), piece.begin(), piece.end());
    if (byte == end.byte && size_bytes > 0) count = std::ssize(ids);
  };
  tokenizer_->encode_window({.text = text,
                             .first = begin.byte == 0,
                             .last = end_byte == text_->size_bytes(),
                             .begin = begin.byte,
                             .stop = end.byte - begin.byte},
                            take);
  if (count < 0 && byte < end.byte && end_byte < text_->size_bytes()) return false;
  if (count != end.id - begin.id)
    throw DataError(
        "[data] {} has {} tokens from byte {} to byte {}, but had {} when it was opened. It was changed while in "
        "use. Restore it and start again.",
        files::shown(text_->path()), ids.size(), begin.byte, end.byte, end.id - begin.id);
  ids.resize(static_cast<size_t>(count));
  return true;
}

std::pair<TextTokens::Mark, TextTokens::Mark> TextTokens::around(int64_t begin, int64_t end) const {
  const auto first =
      std::upper_bound(marks_.begin(), marks_.end(), begin, [](int64_t id, const Mark& mark) { return id < mark.id; }) -
      1;
  return {*first,
          *std::lower_bound(first, marks_.end(), end, [](const Mark& mark, int64_t id) { return mark.id < id; })};
}

void TextTokens::prefetch(int64_t begin, int64_t count) const {
  if (tokenizer_->ids_are_bytes() || count == 0) return text_->prefetch(begin, count);
  const auto [first, last] = around(begin, begin + count);
  text_->prefetch(first.byte, last.byte + tokenizer_->context_bytes() - first.byte);
}

void TextTokens::read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>*) const {
  const auto size = static_cast<int64_t>(out.size());
  SLIP_ASSERT(begin >= 0 && size <= count_ && begin <= count_ - size);
  if (size == 0) return;
  if (tokenizer_->ids_are_bytes()) {
    // The bytes are read into the upper quarter of `out` and widened from there, without a second buffer.
    auto* const bytes = reinterpret_cast<unsigned char*>(out.data()) + 3 * out.size();
    text_->read(begin, bytes, size);
    for (size_t i = 0; i < out.size(); ++i) out[i] = bytes[i];
    return;
  }
  const auto [first, last] = around(begin, begin + size);
  std::vector<int32_t> ids;
  for (int64_t context_bytes = tokenizer_->context_bytes();; context_bytes = 2 * context_bytes + 1)
    if (read_between(first, last, std::min(last.byte + context_bytes, text_->size_bytes()), ids)) break;
  std::copy_n(ids.begin() + (begin - first.id), size, out.begin());
}

}  // namespace slipstream::data
