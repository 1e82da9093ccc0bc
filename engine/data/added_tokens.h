// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens that are found in a text before it is divided into words, such as <|endoftext|>.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace slipstream::data {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool strip_left = false;   // takes the white space before it, too
  bool strip_right = false;  // takes the white space behind it, too, up to the next token
  bool normalized = false;   // is looked for in the normalized text
  bool special = false;
};

/// Finds tokens in texts: the leftmost, and of those the longest. Immutable.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Takes tokens with content.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Found {
    const AddedToken* token = nullptr;  // null: none
    size_t at = 0;                      // of its first byte
    size_t begin = 0;                   // of the token and the white space that it takes
    size_t end = 0;
  };
  /// The first token in text[from ..]. White space that it takes ends before a token that begins there, as in the
  /// library tokenizers. Pure.
  Found find(std::string_view text, size_t from) const;
  /// True if more text behind the first `size_bytes` cannot change `found`. Pure.
  bool is_sure(const Found& found, size_t size_bytes) const;
  /// Bytes of the longest token. Pure.
  size_t longest() const { return longest_; }
  bool any_strips_left() const { return any_strips_left_; }
  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  size_t end_of_spaces(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;                     // longest first
  std::array<std::vector<uint32_t>, 256> by_first_{};  // indices of tokens, longest first
  size_t longest_ = 0;
  bool any_strips_left_ = false;
  bool any_begins_with_space_ = false;
};

/// Bytes of the White_Space characters at the begin of `text`. Pure.
size_t spaces_at_begin(std::string_view text);
/// Bytes of `text` before the White_Space characters at its end. Pure.
size_t end_without_spaces(std::string_view text);

}  // namespace slipstream::data
