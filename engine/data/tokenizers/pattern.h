// SPDX-License-Identifier: Apache-2.0
#pragma once
// Regular expressions of tokenizers, with Unicode classes and look-ahead. PCRE2 matches them.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace slipstream::data {

/// The result of one search. Pure data.
struct Match {
  enum class Kind : uint8_t {
    none,  // there is no match up to the end
    full,  // [begin, end) matches, independent of what follows the text
    open,  // text after the end could change the result
  };
  Kind kind = Kind::none;
  size_t begin = 0;
  size_t end = 0;
};

/// A compiled pattern. Immutable, and may be shared between threads.
class Pattern {
 public:
  /// `where` names the source of `text` in errors. White space is the Unicode property White_Space, as in Rust; other
  /// properties, digits, groups, look-ahead, the end of the text and possessive or lazy quantifiers mean the same as in
  /// PCRE2. Throws: DataError if the text is not a pattern or uses another construct (word characters and boundaries,
  /// ^, $, look-behind, references), because libraries disagree on these.
  Pattern(std::string_view text, const std::string& where);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  /// Returns the pattern as it was given. Pure.
  const std::string& text() const;

  /// The memory that one thread needs for matching.
  class Matcher {
   public:
    explicit Matcher(const Pattern& pattern);
    ~Matcher();
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) = delete;
    /// Returns the first match that begins at byte `from` or later. `text` must be UTF-8. Without `last`, more text may
    /// follow. Throws: DataError if the pattern needs more than 10 million steps at one place.
    Match find(std::string_view text, size_t from, bool last);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns true if `text` has an interval followed by +, such as {1,3}+. It is possessive here and repeated in
/// Oniguruma. Pure.
bool has_possessive_interval(std::string_view text);

}  // namespace slipstream::data
