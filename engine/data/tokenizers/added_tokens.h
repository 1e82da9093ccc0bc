// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens that are found in a text before the text is divided into words, such as <|endoftext|>.

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
  bool strip_left = false;   // also takes the white space before it
  bool strip_right = false;  // also takes the white space after it, up to the next token
  bool normalized = false;   // is searched in the normalized text
  bool special = false;
  bool single_word = false;  // counts only if no word character is beside it
};

/// Finds tokens in texts: the leftmost one, and the longest of several that begin at the same place. Immutable.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Every token must have content.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Found {
    const AddedToken* token = nullptr;  // null: no token was found
    size_t at = 0;                      // the position of its first byte
    size_t begin = 0;                   // the range of the token and of the white space that it takes
    size_t end = 0;
    size_t next = 0;  // no token begins in [end, next)
  };
  /// The ranges [first, second) of tokens that do not count because of the characters beside them. No other token
  /// begins there. If the text were split there, these characters would be lost.
  using Places = std::vector<std::pair<size_t, size_t>>;
  /// Returns the first token in text[next ..]. The token may take white space from `from` on. White space that a token
  /// takes ends before a token that begins there, as in the library tokenizers. Adds to `uncounted`. Pure.
  Found find(std::string_view text, size_t from, size_t next, Places& uncounted) const;
  /// Returns true if more text after the first `size_bytes` cannot change `found`. Pure.
  bool is_sure(const Found& found, size_t size_bytes) const;
  /// Returns true if text[at ..] alone has the tokens that it has as a part of `text`. `at` is the end of a token.
  /// Pure.
  bool can_cut(std::string_view text, size_t at) const;
  /// Returns the bytes at the end of a text with which a token could begin that further text could change. Pure.
  size_t unsure_bytes() const;
  /// Returns the bytes of the longest token. Pure.
  size_t longest() const { return longest_; }
  bool any_strips_left() const { return any_strips_left_; }
  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  bool counts(const AddedToken& token, std::string_view text, size_t at) const;
  std::pair<size_t, size_t> end_of_spaces(std::string_view text, size_t at, Places& uncounted) const;
  size_t reach() const { return longest_ + (words_.empty() ? 0 : 4); }

  std::vector<AddedToken> tokens_;                     // sorted, the longest first
  std::array<std::vector<uint32_t>, 256> by_first_{};  // by first byte: the indices of its tokens, the longest first
  std::array<bool, 256> begins_{};                     // by byte: whether a token begins with it
  size_t longest_ = 0;
  bool any_strips_left_ = false;
  bool any_begins_with_space_ = false;
  std::vector<bool> words_;  // by code point: whether it is a word character; empty if no token is a single word
};

/// Returns the bytes of the White_Space characters at the beginning of `text`. Pure.
size_t spaces_at_begin(std::string_view text);
/// Returns the bytes of `text` before the White_Space characters at its end. Pure.
size_t end_without_spaces(std::string_view text);

}  // namespace slipstream::data
