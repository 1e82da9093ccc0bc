// SPDX-License-Identifier: Apache-2.0
#pragma once
// The text of generated ids as they come: valid UTF-8, and nothing from a stop text on.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::runtime {

class TextStream {
 public:
  /// `prompt`: at least one id. `stops`: texts, not empty. `show` receives consecutive parts of text(). Keeps a
  /// reference to the tokenizer.
  TextStream(const data::Tokenizer& tokenizer, std::span<const int32_t> prompt, std::vector<std::string> stops,
             std::function<void(std::string_view)> show);

  /// True if the text contains a stop text now: then no more ids may come. Throws: DataError if the id has no text.
  bool add(int32_t id);
  /// Shows the rest, once no more ids come.
  void finish();
  /// All text so far, up to the first stop text, with U+FFFD in the place of bytes that are not UTF-8.
  std::string text() const;

 private:
  void show_up_to(size_t end);
  size_t open_size() const;

  const data::Tokenizer& tokenizer_;
  int32_t last_;
  std::vector<std::string> stops_;
  std::function<void(std::string_view)> show_;
  std::string text_;  // as its ids have it
  size_t shown_ = 0;  // bytes of it
};

}  // namespace slipstream::runtime
