// SPDX-License-Identifier: Apache-2.0
#pragma once
// Divides a text into the words that are encoded one by one ("pre-tokens").

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/data/tokenizers/pattern.h"

namespace slipstream::data {

/// A set of pairs of characters. It is fast, because the splitter looks up every character of a text.
class CharacterPairs {
 public:
  void insert(uint32_t first, uint32_t second);
  bool contains(uint32_t first, uint32_t second) const {
    if (first < 128 && second < 128) return ascii_[first * 128 + second];
    if (slots_.empty()) return false;
    for (size_t at = hash(first, second) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == key(first, second)) return true;
      if (slots_[at] == 0) return false;
    }
  }

 private:
  static uint64_t key(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second | uint64_t{1} << 63; }
  static size_t hash(uint32_t first, uint32_t second) { return key(first, second) * 0x9e3779b97f4a7c15 >> 32; }

  std::vector<bool> ascii_ = std::vector<bool>(128 * 128);
  std::vector<uint64_t> slots_;  // the length is a power of two, and at most half of the slots are full
  size_t used_ = 0;
};

/// One pattern, and what becomes of its matches.
struct WordRule {
  enum class Keep : uint8_t {
    all,      // matches are words, and so is the text between them
    matches,  // only matches are words, and the text between them is left out
    between,  // matches are left out, and the text between them are words
  };
  Pattern pattern;
  Keep keep = Keep::all;
};

struct WordRules {
  std::vector<WordRule> rules;  // applied in order: each rule divides the words of the previous one
  // These apply without rules:
  bool at_marks = false;  // a word begins at each U+2581 or space
  bool at_pairs = false;  // a word ends between characters that no token contains side by side
  CharacterPairs pairs;   // the pairs of characters that a token contains; a space counts as U+2581
};

/// Divides texts for one thread.
class WordSplitter {
 public:
  /// `rules` must outlive this object.
  explicit WordSplitter(const WordRules& rules);

  /// Calls take(word, end) for consecutive words until it returns false. `end` is the end of the part of the text that
  /// is done, or 0 inside a word of the first rule. The words up to an end depend on nothing after `text`, and text
  /// that begins there has the same words. An empty word marks text that is left out. Without `last`, the rest of the
  /// text is not done. Returns the last end. Throws: DataError as Pattern.
  template <typename Take>
  size_t split(std::string_view text, bool last, const Take& take) {
    return rules_.rules.empty() ? split_at_characters(text, last, take) : split_by_rules(text, last, take);
  }

 private:
  template <typename Take>
  size_t split_at_characters(std::string_view text, bool last, const Take& take);
  template <typename Take>
  size_t split_by_rules(std::string_view text, bool last, const Take& take);
  template <typename Take>
  size_t apply(size_t rule, std::string_view text, bool last, const Take& take);
  /// Appends the words that the rules from `rule` on make of `word` to words_.
  void divide(size_t rule, std::string_view word);

  const WordRules& rules_;
  std::vector<Pattern::Matcher> matchers_;
  std::vector<std::string_view> words_;
};

/// Returns the bytes of U+2581 or of a space at the beginning of `text`, or 0 if there is neither. Pure.
inline size_t mark_bytes(std::string_view text) {
  return text.empty() ? 0 : text[0] == ' ' ? 1 : text.starts_with("\xe2\x96\x81") ? 3 : 0;
}

template <typename Take>
size_t WordSplitter::split_at_characters(std::string_view text, bool last, const Take& take) {
  constexpr uint32_t kMark = 0x2581;
  size_t begin = 0;
  if (rules_.at_marks || rules_.at_pairs) {
    uint32_t before = 0;
    for (size_t at = 0; at < text.size();) {
      CodePoint point = next_code_point(text, at);
      if (point.value == ' ') point.value = kMark;
      const bool ends =
          (rules_.at_marks && point.value == kMark) || (rules_.at_pairs && !rules_.pairs.contains(before, point.value));
      if (ends && at > begin) {
        if (!take(text.substr(begin, at - begin), at)) return at;
        begin = at;
      }
      before = point.value;
      at += static_cast<size_t>(point.size_bytes);
    }
  }
  if (!last || begin == text.size()) return begin;
  take(text.substr(begin), text.size());
  return text.size();
}

template <typename Take>
size_t WordSplitter::split_by_rules(std::string_view text, bool last, const Take& take) {
  const bool only = rules_.rules.size() == 1;
  return apply(0, text, last, [&](std::string_view word, size_t end) {
    if (only || word.empty()) return take(word, end);
    words_.clear();
    divide(1, word);
    for (size_t i = 0; i < words_.size(); ++i)
      if (!take(words_[i], i + 1 == words_.size() ? end : 0)) return false;
    return true;
  });
}

template <typename Take>
size_t WordSplitter::apply(size_t rule, std::string_view text, bool last, const Take& take) {
  const WordRule::Keep keep = rules_.rules[rule].keep;
  size_t done = 0;
  while (done < text.size()) {
    const Match match = matchers_[rule].find(text, done, last);
    if (match.kind == Match::Kind::open) return done;
    const bool found = match.kind == Match::Kind::full;
    if (!found && !last) return done;  // the text up to a later match is one word
    const size_t begin = found ? match.begin : text.size();
    if (begin > done) {
      const std::string_view word = text.substr(done, begin - done);
      done = begin;
      if (!take(keep == WordRule::Keep::matches ? std::string_view() : word, done)) return done;
    }
    if (found) {
      done = match.end;
      if (!take(keep == WordRule::Keep::between ? std::string_view() : text.substr(begin, done - begin), done))
        return done;
    }
  }
  return done;
}

}  // namespace slipstream::data
