// SPDX-License-Identifier: Apache-2.0
// Passes over a text file in pieces, and encodes the requested parts.

#include "engine/data/text.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/data/hash.h"

namespace slipstream::data {

namespace {

constexpr int64_t kPieceBytes = kMiB;
constexpr int64_t kMarkIds = 1024;

/// Bytes at the end of a piece that may begin a character of the next piece. Pure.
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

TextFile::TextFile(const std::string& path) : file_(path, files::Owner::data) {
  if (size_bytes() == 0)
    throw DataError("[data] {} is empty, need text. Use a file that is not empty.", files::shown(path));
}

std::string TextFile::read(int64_t begin, int64_t end) const {
  std::string bytes(static_cast<size_t>(end - begin), '\0');
  file_.read(begin, bytes.data(), end - begin);
  return bytes;
}

void TextFile::for_pieces(const TakePiece& take) const {
  std::string bytes(static_cast<size_t>(std::min(kPieceBytes, size_bytes())), '\0');
  for (int64_t begin = 0; begin < size_bytes();) {
    const auto size = static_cast<size_t>(std::min(kPieceBytes, size_bytes() - begin));
    file_.read(begin, bytes.data(), static_cast<int64_t>(size));
    std::string_view piece(bytes.data(), size);
    if (begin + std::ssize(piece) < size_bytes()) piece.remove_suffix(unfinished(piece));
    try {
      take(piece, begin);
    } catch (const DataError& error) {
      throw DataError("{} (in {})", error.what(), files::shown(path()));
    }
    begin += std::ssize(piece);
  }
}

TextTokens::TextTokens(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const TextFile> text,
                       int64_t marks_max)
    : tokenizer_(std::move(tokenizer)), text_(std::move(text)), mark_ids_(kMarkIds) {
  Xxh3 hash;
  text_->for_pieces([&](std::string_view piece, int64_t begin) {
    hash.update(piece.data(), std::ssize(piece));
    if (!tokenizer_->ids_are_bytes()) mark(piece, begin, marks_max);
  });
  hash_ = hash.hex();
  if (tokenizer_->ids_are_bytes())
    count_ = text_->size_bytes();
  else
    marks_.push_back(text_->size_bytes());
  marks_.shrink_to_fit();
}

void TextTokens::mark(std::string_view piece, int64_t begin, int64_t marks_max) {
  int64_t byte = begin;
  const auto take = [&](std::span<const int32_t> rest) {
    while (!rest.empty()) {
      if (count_ % mark_ids_ == 0 && std::ssize(marks_) == marks_max) {
        for (size_t i = 0; 2 * i < marks_.size(); ++i) marks_[i] = marks_[2 * i];
        marks_.resize((marks_.size() + 1) / 2);
        mark_ids_ *= 2;
      }
      const auto until_mark = static_cast<size_t>(mark_ids_ - count_ % mark_ids_);
      const std::span<const int32_t> ids = rest.first(std::min(rest.size(), until_mark));
      if (count_ % mark_ids_ == 0) marks_.push_back(byte);
      byte += std::ssize(tokenizer_->decode(ids));
      count_ += std::ssize(ids);
      rest = rest.subspan(ids.size());
    }
  };
  tokenizer_->encode_pieces(piece, take, begin);
  SLIP_ASSERT(byte == begin + std::ssize(piece));
}

void TextTokens::read(int64_t begin, std::span<int32_t> out) const {
  const auto size = static_cast<int64_t>(out.size());
  SLIP_ASSERT(begin >= 0 && size <= count_ && begin <= count_ - size);
  if (size == 0) return;
  if (tokenizer_->ids_are_bytes()) {
    // The bytes land in the upper quarter of `out` and are widened upwards, without a second buffer.
    auto* const bytes = reinterpret_cast<unsigned char*>(out.data()) + 3 * out.size();
    text_->read(begin, bytes, size);
    for (size_t i = 0; i < out.size(); ++i) out[i] = bytes[i];
    return;
  }
  const int64_t mark = begin / mark_ids_, end = (begin + size + mark_ids_ - 1) / mark_ids_;
  const std::string text = text_->read(marks_[static_cast<size_t>(mark)], marks_[static_cast<size_t>(end)]);
  const std::vector<int32_t> ids = tokenizer_->encode(text);
  if (std::ssize(ids) != std::min(count_, end * mark_ids_) - mark * mark_ids_)
    throw DataError(
        "[data] {} has {} characters from byte {} to byte {}, but had {} when it was opened. It was changed while in "
        "use. Restore it and start again.",
        files::shown(text_->path()), ids.size(), marks_[static_cast<size_t>(mark)], marks_[static_cast<size_t>(end)],
        std::min(count_, end * mark_ids_) - mark * mark_ids_);
  std::copy_n(ids.begin() + begin % mark_ids_, size, out.begin());
}

}  // namespace slipstream::data
