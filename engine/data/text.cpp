// SPDX-License-Identifier: Apache-2.0
// Reads a whole text file and encodes the requested parts.

#include "engine/data/text.h"

#include <algorithm>
#include <limits>

#include "engine/base/check.h"
#include "engine/base/files.h"

namespace slipstream::data {

namespace {

/// Ids between two positions with a known byte offset: the most ids that a read encodes in excess, before its first id.
constexpr int64_t kMarkIds = 1024;

class TextTokens final : public TokenSource {
 public:
  TextTokens(std::shared_ptr<const Tokenizer> tokenizer, std::string text)
      : tokenizer_(std::move(tokenizer)), text_(std::move(text)) {
    int64_t byte = 0;
    tokenizer_->encode_pieces(text_, [&](std::span<const int32_t> piece) {
      while (!piece.empty()) {
        const auto until_mark = static_cast<size_t>(kMarkIds - count_ % kMarkIds);
        const std::span<const int32_t> ids = piece.first(std::min(piece.size(), until_mark));
        if (count_ % kMarkIds == 0) marks_.push_back(byte);
        byte += std::ssize(tokenizer_->decode(ids));
        count_ += std::ssize(ids);
        piece = piece.subspan(ids.size());
      }
    });
    SLIP_ASSERT(byte == std::ssize(text_));
    marks_.push_back(byte);
  }

  int64_t count() const override { return count_; }

  void read(int64_t begin, std::span<int32_t> out) const override {
    const auto size = static_cast<int64_t>(out.size());
    SLIP_ASSERT(begin >= 0 && size <= count_ && begin <= count_ - size);
    if (size == 0) return;
    const auto mark = static_cast<size_t>(begin / kMarkIds);
    const auto end = static_cast<size_t>((begin + size + kMarkIds - 1) / kMarkIds);
    const std::string_view text(text_.data() + marks_[mark], static_cast<size_t>(marks_[end] - marks_[mark]));
    const std::vector<int32_t> ids = tokenizer_->encode(text);
    std::copy_n(ids.begin() + begin % kMarkIds, size, out.begin());
  }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string text_;
  int64_t count_ = 0;
  std::vector<int64_t> marks_;  // byte offset of every kMarkIds-th id, and of the end
};

}  // namespace

std::string read_text(const std::string& path) {
  std::string text = files::read_file(path, files::Owner::data, std::numeric_limits<int64_t>::max());
  if (text.empty()) throw DataError("[data] {} is empty, need text. Use a file that is not empty.", files::shown(path));
  return text;
}

std::shared_ptr<const TokenSource> tokens_of_text(std::shared_ptr<const Tokenizer> tokenizer, std::string text) {
  return std::make_shared<TextTokens>(std::move(tokenizer), std::move(text));
}

}  // namespace slipstream::data
