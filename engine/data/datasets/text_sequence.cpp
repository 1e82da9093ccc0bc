// SPDX-License-Identifier: Apache-2.0
// Keeps the bytes of the open text until it is known whether they belong to the hash.

#include "engine/data/datasets/text_sequence.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace slipstream::data {

TextSequence::TextSequence(const std::vector<std::string>& paths, DataFormat named, bool hashes)
    : named_(named), hashes_(hashes) {
  for (const std::string& path : paths) {
    if (names_standard_input(path) && standard_input_)
      throw ConfigError("[data] standard input is named twice. It can be read once.");
    TextInput input(path, named);
    texts_.push_back(
        {input.path(), input.format(), input.file_bytes(), input.is_plain_file(), names_standard_input(path)});
    if (names_standard_input(path)) standard_input_.emplace(std::move(input));
  }
}

const TextInput& TextSequence::open(int64_t index) {
  taken_ = std::numeric_limits<int64_t>::max();
  update_hash();
  SLIP_ASSERT(index == index_ + 1 && waiting_done_ == std::ssize(waiting_));
  waiting_.clear();
  if (input_) files_done_bytes_ += input_->file_bytes();
  index_ = index;
  hashed_ = taken_ = again_ = waiting_done_ = 0;
  const Text& text = texts_[static_cast<size_t>(index)];
  input_.reset();
  if (text.is_standard_input)
    input_.emplace(std::move(*standard_input_));
  else
    input_.emplace(text.path, named_);
  return *input_;
}

void TextSequence::update_hash() {
  const int64_t more = std::min(taken_ - hashed_, std::ssize(waiting_) - waiting_done_);
  if (more <= 0) return;
  hash_.update(waiting_.data() + waiting_done_, more);
  waiting_done_ += more;
  hashed_ += more;
  hashed_bytes_ += more;
}

int64_t TextSequence::read(char* out, int64_t size_bytes) {
  const int64_t got = input_->read(out, size_bytes), known = std::min(got, again_);
  again_ -= known;
  text_bytes_ += got - known;
  if (!hashes_) return got;
  update_hash();
  waiting_.erase(0, static_cast<size_t>(std::exchange(waiting_done_, 0)));
  waiting_.append(out + known, static_cast<size_t>(got - known));
  return got;
}

bool TextSequence::go_to(int64_t index, int64_t byte, int64_t hashed_bytes) {
  std::string piece(static_cast<size_t>(kMiB), '\0'), kept;
  if (index >= std::ssize(texts_)) return false;
  for (int64_t text = 0; text <= index; ++text) {
    open(text);
    taken_ = std::numeric_limits<int64_t>::max();
    for (int64_t at = 0;;) {
      const int64_t left = text < index ? kMiB : std::max(byte - at, hashed_bytes - hashed_bytes_);
      if (left <= 0) break;
      const int64_t got = read(piece.data(), std::min(kMiB, left));
      update_hash();
      if (got == 0 && text == index) return false;
      if (got == 0) break;
      const int64_t before = std::clamp<int64_t>(byte - at, 0, got);
      if (text == index) kept.append(piece, static_cast<size_t>(before), static_cast<size_t>(got - before));
      at += got;
    }
  }
  taken_ = hashed_;
  again_ = std::ssize(kept);
  input_->put_back(std::move(kept));
  return true;
}

std::string TextSequence::hash() {
  update_hash();
  return hash_.hex();
}

int64_t TextSequence::file_bytes_done() const {
  if (!input_) return files_done_bytes_;
  return files_done_bytes_ +
         (input_->is_plain_file() ? std::min(taken_, input_->file_bytes()) : input_->file_bytes_read());
}

int64_t TextSequence::file_bytes() const {
  int64_t sum = 0;
  for (const Text& text : texts_) {
    if (text.file_bytes == 0) return 0;
    sum += text.file_bytes;
  }
  return sum;
}

}  // namespace slipstream::data
