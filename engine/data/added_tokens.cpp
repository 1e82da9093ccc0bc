// SPDX-License-Identifier: Apache-2.0
// Compares the tokens that begin with a byte at each place of a text.

#include "engine/data/added_tokens.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/utf8.h"

namespace slipstream::data {
namespace {

bool is_space(uint32_t value) {
  return (value >= 9 && value <= 13) || value == 0x20 || value == 0x85 || value == 0xa0 || value == 0x1680 ||
         (value >= 0x2000 && value <= 0x200a) || value == 0x2028 || value == 0x2029 || value == 0x202f ||
         value == 0x205f || value == 0x3000;
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
    longest_ = std::max(longest_, tokens_[i].content.size());
    any_strips_left_ |= tokens_[i].strip_left;
    any_begins_with_space_ |= spaces_at_begin(tokens_[i].content) > 0;
  }
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at) const {
  for (const uint32_t i : by_first_[static_cast<unsigned char>(text[at])])
    if (text.substr(at).starts_with(tokens_[i].content)) return &tokens_[i];
  return nullptr;
}

/// The end of the white space at `at` that a token before it takes.
size_t AddedTokens::end_of_spaces(std::string_view text, size_t at) const {
  if (!any_begins_with_space_) return at + spaces_at_begin(text.substr(at));
  while (at < text.size()) {
    const CodePoint point = next_code_point(text, at);
    if (point.size_bytes == 0 || !is_space(point.value)) break;
    const AddedToken* token = longest_at(text, at);
    // The library lets a token that takes the white space before it begin behind all that the token before took. White
    // space alone then keeps no character, and the library drops it.
    const bool drops =
        token != nullptr && token->strip_left && spaces_at_begin(token->content) == token->content.size();
    if (token != nullptr && !drops) break;
    at += drops ? token->content.size() : static_cast<size_t>(point.size_bytes);
  }
  return at;
}

AddedTokens::Found AddedTokens::find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return {};
  for (size_t at = from; at < text.size(); ++at)
    if (const AddedToken* token = longest_at(text, at); token != nullptr) {
      size_t begin = at, end = at + token->content.size();
      if (token->strip_left) begin = from + end_without_spaces(text.substr(from, at - from));
      if (token->strip_right) end = end_of_spaces(text, end);
      return {token, at, begin, end};
    }
  return {};
}

bool AddedTokens::is_sure(const Found& found, size_t size_bytes) const {
  if (found.token == nullptr || found.end >= size_bytes || found.at + longest_ > size_bytes) return false;
  return !found.token->strip_right || !any_begins_with_space_ || found.end + longest_ <= size_bytes;
}

}  // namespace slipstream::data
