// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens that are found in a text before it is divided into words, such as <|endoftext|>.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace slipstream::data {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool strip_left = false;   // takes the white space before it, too
  bool strip_right = false;  // takes the white space behind it, too, up to the next token
  bool normalized = false;   // is looked for in the normalized text
  bool special = false;
  bool single_word = false;  // counts only without word characters beside it
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
    size_t next = 0;  // no token begins in [end, next)
  };
  /// Places [first, second) of tokens that do not count because of the characters beside them. No other token begins
  /// there, and text that is cut there could lose this.
  using Places = std::vector<std::pair<size_t, size_t>>;
  /// The first token in text[next ..]; white space behind `from` is taken. White space that a token takes ends before a
  /// token that begins there, as in the library tokenizers. Adds to `uncounted`. Pure.
  Found find(std::string_view text, size_t from, size_t next, Places& uncounted) const;
  /// True if more text behind the first `size_bytes` cannot change `found`. Pure.
  bool is_sure(const Found& found, size_t size_bytes) const;
  /// True if text[at ..] alone has the tokens that it has in `text`. `at` is the end of a token. Pure.
  bool can_cut(std::string_view text, size_t at) const;
  /// Bytes at the end of a text with which a token could begin that more text behind could change. Pure.
  size_t unsure_bytes() const;
  /// Bytes of the longest token. Pure.
  size_t longest() const { return longest_; }
  bool any_strips_left() const { return any_strips_left_; }
  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  bool counts(const AddedToken& token, std::string_view text, size_t at) const;
  std::pair<size_t, size_t> end_of_spaces(std::string_view text, size_t at, Places& uncounted) const;
  size_t reach() const { return longest_ + (words_.empty() ? 0 : 4); }

  std::vector<AddedToken> tokens_;                     // longest first
  std::array<std::vector<uint32_t>, 256> by_first_{};  // indices of tokens, longest first
  std::array<bool, 256> begins_{};                     // by byte: a token begins with it
  size_t longest_ = 0;
  bool any_strips_left_ = false;
  bool any_begins_with_space_ = false;
  std::vector<bool> words_;  // by code point: a word character; empty without tokens that are single words
};

/// Bytes of the White_Space characters at the begin of `text`. Pure.
size_t spaces_at_begin(std::string_view text);
/// Bytes of `text` before the White_Space characters at its end. Pure.
size_t end_without_spaces(std::string_view text);

}  // namespace slipstream::data
