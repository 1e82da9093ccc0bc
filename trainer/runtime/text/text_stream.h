// SPDX-License-Identifier: Apache-2.0
#pragma once
// The text of generated ids as they come: valid UTF-8 that ends before a stop text.

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
  /// `prompt` has at least one id. `stops` are texts that are not empty. `show` receives consecutive parts of text().
  /// Keeps a reference to the tokenizer.
  TextStream(const data::Tokenizer& tokenizer, std::span<const int32_t> prompt, std::vector<std::string> stops,
             std::function<void(std::string_view)> show);

  /// Returns true if the text now contains a stop text. Then no more ids may be added. Throws: DataError if the id has
  /// no text.
  bool add(int32_t id);
  /// Shows the rest, once no more ids come.
  void finish();
  /// Returns all text so far, up to the first stop text, with U+FFFD in the place of bytes that are not UTF-8.
  std::string text() const;

 private:
  void show_up_to(size_t end);
  size_t open_size() const;

  const data::Tokenizer& tokenizer_;
  int32_t last_;
  std::vector<std::string> stops_;
  std::function<void(std::string_view)> show_;
  std::string text_;  // the text of its ids
  size_t shown_ = 0;  // the bytes of it that have been shown
};

}  // namespace slipstream::runtime
