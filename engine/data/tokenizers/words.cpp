// SPDX-License-Identifier: Apache-2.0
// Applies several word rules in their order.

#include "engine/data/tokenizers/words.h"

#include <algorithm>

namespace slipstream::data {

void CharacterPairs::insert(uint32_t first, uint32_t second) {
  if (contains(first, second)) return;
  if (first < 128 && second < 128) {
    ascii_[first * 128 + second] = true;
    return;
  }
  if (2 * (used_ + 1) > slots_.size()) {
    std::vector<uint64_t> old(std::max<size_t>(64, 2 * slots_.size()));
    old.swap(slots_);
    used_ = 0;
    for (const uint64_t one : old)
      if (one != 0) insert(static_cast<uint32_t>(one >> 32) & ~(uint32_t{1} << 31), static_cast<uint32_t>(one));
  }
  size_t at = hash(first, second) & (slots_.size() - 1);
  while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = key(first, second);
  ++used_;
}

WordSplitter::WordSplitter(const WordRules& rules) : rules_(rules) {
  for (const WordRule& rule : rules.rules) matchers_.emplace_back(rule.pattern);
}

void WordSplitter::divide(size_t rule, std::string_view word) {
  apply(rule, word, true, [&](std::string_view inner, size_t) {
    if (rule + 1 == rules_.rules.size() || inner.empty())
      words_.push_back(inner);
    else
      divide(rule + 1, inner);
    return true;
  });
}

}  // namespace slipstream::data
