// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changes a text before it is encoded: Unicode normal forms, replaced characters, and a prefix.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace slipstream::data {

enum class NormalForm { none, nfc, nfd, nfkc, nfkd };

/// A text, and the origin of its parts.
struct NormalizedText {
  std::string_view text;  // a view of `changed` or of the input
  bool same = true;       // text equals the input
  std::string changed;
  /// The offsets, in `text` and in the input, of positions that nothing before them influences, ascending.
  std::vector<std::pair<size_t, size_t>> places;
};

/// The changes as a value. The normal form is applied first, then single characters are replaced, then a prefix is
/// added.
struct Normalizer {
  NormalForm form = NormalForm::none;
  std::vector<std::pair<std::string, std::string>> replacements;  // each replaces one character
  std::string prefix;                                             // is added to a text that is not empty

  /// `begins` is true if the input is the beginning of a segment, which gets the prefix. `input` must be UTF-8. Pure.
  void apply(std::string_view input, bool begins, NormalizedText& out) const;
  /// Does the same without the positions. Pure.
  std::string apply(std::string_view input) const;
};

}  // namespace slipstream::data
