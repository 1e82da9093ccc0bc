// SPDX-License-Identifier: Apache-2.0
// Holds back the end of a text while it may begin a stop text or is a part of a character.

#include "trainer/runtime/text/text_stream.h"

#include <algorithm>
#include <utility>

#include "engine/base/utf8.h"

namespace slipstream::runtime {
namespace {

/// Returns the bytes at the end of the text that begin a character whose rest is missing.
size_t open_character(std::string_view text) {
  for (size_t size = std::min<size_t>(3, text.size()); size > 0; --size) {
    const size_t at = text.size() - size;
    if (next_code_point(text, at).size_bytes == 0 && broken_at(text, at).open) return size;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(const data::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                       std::vector<std::string> stops, std::function<void(std::string_view)> show)
    : tokenizer_(tokenizer), last_(prompt.back()), stops_(std::move(stops)), show_(std::move(show)) {}

bool TextStream::add(int32_t id) {
  const size_t before = text_.size();
  // The text of an id depends only on whether it is the first one.
  const int32_t pair[] = {last_, id};
  text_ += tokenizer_.decode(pair).substr(tokenizer_.decode(std::span(pair).first(1)).size());
  last_ = id;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, text_.find(stop, before - std::min(before, stop.size())));
  const bool stopped = end != std::string::npos;
  if (stopped) text_.resize(end);
  show_up_to(stopped ? end : text_.size() - open_size());
  return stopped;
}

void TextStream::finish() { show_up_to(text_.size()); }

void TextStream::show_up_to(size_t end) {
  if (end <= shown_) return;
  show_(valid_utf8(std::string_view(text_).substr(shown_, end - shown_)));
  shown_ = end;
}

std::string TextStream::text() const { return valid_utf8(text_); }

size_t TextStream::open_size() const {
  size_t open = open_character(text_);
  for (const std::string& stop : stops_)
    for (size_t size = std::min(stop.size() - 1, text_.size()); size > open; --size)
      if (text_.ends_with(std::string_view(stop).substr(0, size))) open = size;
  return open;
}

}  // namespace slipstream::runtime
