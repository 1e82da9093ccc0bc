// SPDX-License-Identifier: Apache-2.0
// Compares the tokens that begin with a byte at each position of a text.

#include "engine/data/tokenizers/added_tokens.h"

#include <algorithm>
#include <tuple>

#include "engine/base/check.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizers/pattern.h"

namespace slipstream::data {
namespace {

bool is_space(uint32_t value) {
  return (value >= 9 && value <= 13) || value == 0x20 || value == 0x85 || value == 0xa0 || value == 0x1680 ||
         (value >= 0x2000 && value <= 0x200a) || value == 0x2028 || value == 0x2029 || value == 0x202f ||
         value == 0x205f || value == 0x3000;
}

/// Returns the word characters by code point. Source: Unicode Technical Standard 18, annex C, "word".
std::vector<bool> word_characters() {
  constexpr uint32_t kCodePoints = 0x110000;
  std::string all;
  std::vector<uint32_t> values;  // by byte of `all`
  for (uint32_t value = 0; value < kCodePoints; ++value) {
    if (value >= 0xd800 && value < 0xe000) continue;
    append_code_point(all, value);
    values.resize(all.size(), value);
  }
  const Pattern words("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\u200c\u200d]+", "the word characters");
  Pattern::Matcher matcher(words);
  std::vector<bool> is_word(kCodePoints);
  for (Match match = matcher.find(all, 0, true); match.kind == Match::Kind::full;
       match = matcher.find(all, match.end, true))
    for (size_t at = match.begin; at < match.end; ++at) is_word[values[at]] = true;
  return is_word;
}

}  // namespace

size_t spaces_at_begin(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint point = next_code_point(text, at);
    if (point.size_bytes == 0 || !is_space(point.value)) break;
    at += static_cast<size_t>(point.size_bytes);
  }
  return at;
}

size_t end_without_spaces(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    if (!is_space(next_code_point(text, begin).value)) break;
    end = begin;
  }
  return end;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    SLIP_ASSERT(!tokens_[i].content.empty());
    by_first_[static_cast<unsigned char>(tokens_[i].content[0])].push_back(i);
    begins_[static_cast<unsigned char>(tokens_[i].content[0])] = true;
    longest_ = std::max(longest_, tokens_[i].content.size());
    any_strips_left_ |= tokens_[i].strip_left;
    if (tokens_[i].single_word && words_.empty()) words_ = word_characters();
    any_begins_with_space_ |= spaces_at_begin(tokens_[i].content) > 0;
  }
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at) const {
  for (const uint32_t i : by_first_[static_cast<unsigned char>(text[at])])
    if (text.substr(at).starts_with(tokens_[i].content)) return &tokens_[i];
  return nullptr;
}

bool AddedTokens::counts(const AddedToken& token, std::string_view text, size_t at) const {
  if (!token.single_word) return true;
  const auto is_word = [&](size_t begin) { return words_[next_code_point(text, begin).value]; };
  const size_t end = at + token.content.size();
  size_t before = at;
  while (before > 0 && (static_cast<unsigned char>(text[--before]) & 0xc0) == 0x80) continue;
  return (at == 0 || !is_word(before)) && (end == text.size() || !is_word(end));
}

/// Returns the end of the white space at `at` that the token before it takes, and the position from which the next
/// token is searched.
std::pair<size_t, size_t> AddedTokens::end_of_spaces(std::string_view text, size_t at, Places& uncounted) const {
  if (!any_begins_with_space_) at += spaces_at_begin(text.substr(at));
  while (at < text.size()) {
    const CodePoint point = next_code_point(text, at);
    if (!is_space(point.value)) break;
    const AddedToken* token = longest_at(text, at);
    if (token == nullptr) {
      at += static_cast<size_t>(point.size_bytes);
      continue;
    }
    const size_t size = token->content.size(), spaces = spaces_at_begin(token->content);
    const bool is_counted = counts(*token, text, at);
    // If a token takes the white space before it, the library lets it begin only after all white space that the
    // previous token has taken. A token that is white space alone then keeps no character, and the library drops it.
    if (is_counted && !(token->strip_left && spaces == size)) break;
    if (!is_counted) uncounted.emplace_back(at, at + size);
    if (spaces < size) return {at + spaces, at + size};
    at += size;
  }
  return {at, at};
}

AddedTokens::Found AddedTokens::find(std::string_view text, size_t from, size_t next, Places& uncounted) const {
  if (tokens_.empty()) return {};
  for (size_t at = next; at < text.size(); ++at) {
    if (!begins_[static_cast<unsigned char>(text[at])]) continue;
    const AddedToken* token = longest_at(text, at);
    if (token == nullptr) continue;
    const size_t behind = at + token->content.size();
    if (!counts(*token, text, at)) {
      uncounted.emplace_back(at, behind);
      at = behind - 1;
      continue;
    }
    Found found{.token = token, .at = at, .begin = at, .end = behind, .next = behind};
    if (token->strip_left) found.begin = from + end_without_spaces(text.substr(from, at - from));
    if (token->strip_right) std::tie(found.end, found.next) = end_of_spaces(text, behind, uncounted);
    return found;
  }
  return {};
}

bool AddedTokens::is_sure(const Found& found, size_t size_bytes) const {
  if (found.token == nullptr || found.end >= size_bytes || found.at + reach() > size_bytes) return false;
  return !found.token->strip_right || !any_begins_with_space_ || found.next + reach() <= size_bytes;
}

bool AddedTokens::can_cut(std::string_view text, size_t at) const {
  if (words_.empty() || at == text.size()) return true;
  if (at + reach() > text.size()) return false;
  const AddedToken* token = longest_at(text, at);
  return token == nullptr || counts(*token, text, at);
}

size_t AddedTokens::unsure_bytes() const { return words_.empty() ? std::max<size_t>(longest_, 1) - 1 : reach(); }

}  // namespace slipstream::data
