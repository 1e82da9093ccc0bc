// SPDX-License-Identifier: Apache-2.0
#pragma once
// Regular expressions of tokenizers, with Unicode classes and look-ahead, matched by PCRE2.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace slipstream::data {

/// One search. Pure data.
struct Match {
  enum class Kind : uint8_t {
    none,  // no match up to the end
    full,  // [begin, end) matches, whatever follows the text
    open,  // text behind the end could change the result
  };
  Kind kind = Kind::none;
  size_t begin = 0;
  size_t end = 0;
};

/// Immutable, safe to share between threads.
class Pattern {
 public:
  /// `where` names the source of `text` in errors. White space is the Unicode property White_Space, as in Rust; other
  /// properties, digits, groups, look-ahead, the end of the text and possessive or lazy quantifiers are as in PCRE2.
  /// Throws: DataError if the text is not a pattern or uses another construct (word characters and boundaries, ^, $,
  /// look-behind, references): libraries disagree on these.
  Pattern(std::string_view text, const std::string& where);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  /// The pattern as it was given. Pure.
  const std::string& text() const;

  /// What one thread needs for matching.
  class Matcher {
   public:
    explicit Matcher(const Pattern& pattern);
    ~Matcher();
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) = delete;
    /// The first match that begins at byte `from` or later. `text` must be UTF-8. Without `last`, more text may follow.
    /// Throws: DataError if the pattern needs more than 10 million steps at one place.
    Match find(std::string_view text, size_t from, bool last);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// True if `text` has an interval with + behind it, such as {1,3}+: possessive here, repeated in Oniguruma. Pure.
bool has_possessive_interval(std::string_view text);

}  // namespace slipstream::data
