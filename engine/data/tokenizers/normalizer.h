// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changes of a text before it is encoded: Unicode normal forms, replaced characters, a prefix.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace slipstream::data {

enum class NormalForm { none, nfc, nfd, nfkc, nfkd };

/// A text and where its parts came from.
struct NormalizedText {
  std::string_view text;  // of `changed` or of the input
  bool same = true;       // text is the input
  std::string changed;
  /// Offsets in `text` and in the input of places that nothing before influences, ascending.
  std::vector<std::pair<size_t, size_t>> places;
};

/// A value. First the normal form, then single characters are replaced, then a prefix is put before.
struct Normalizer {
  NormalForm form = NormalForm::none;
  std::vector<std::pair<std::string, std::string>> replacements;  // one character each, and its replacement
  std::string prefix;                                             // of a text that is not empty

  /// `begins`: the input is the begin of a segment, so the prefix belongs before it. `input` must be UTF-8. Pure.
  void apply(std::string_view input, bool begins, NormalizedText& out) const;
  /// The same without places. Pure.
  std::string apply(std::string_view input) const;
};

}  // namespace slipstream::data
