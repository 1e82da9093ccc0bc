// SPDX-License-Identifier: Apache-2.0
// Compares the treatment of broken UTF-8 with a definition by trials; tests/engine/data/bpe_test.cpp compares it with
// other libraries.

#include "engine/base/utf8.h"

#include <algorithm>
#include <random>

#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// Do some further bytes make `begin` one code point?
bool begins_character(const std::string& begin) {
  for (const char* rest :
       {"", "\x80", "\xbf", "\x80\x80", "\xbf\xbf", "\x80\x80\x80", "\xbf\xbf\xbf", "\x90\x80\x80", "\xa0\x80"}) {
    const std::string tried = begin + rest;
    if (static_cast<size_t>(next_code_point(tried, 0).size_bytes) == tried.size()) return true;
  }
  return false;
}

/// Writes one U+FFFD for each longest begin of a character, and one for each other byte.
std::string with_replacements(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    size_t size = 0;
    while (size < bytes.size() && size < 4 && begins_character(std::string(bytes.substr(0, size + 1)))) ++size;
    const bool whole =
        static_cast<size_t>(next_code_point(bytes.substr(0, std::max<size_t>(size, 1)), 0).size_bytes) == size;
    text += size > 0 && whole ? bytes.substr(0, size) : "\xef\xbf\xbd";
    bytes.remove_prefix(std::max<size_t>(size, 1));
  }
  return text;
}

}  // namespace

TEST_CASE("utf-8: broken parts become one U+FFFD each, and only an open end may be completed", "[base]") {
  const uint32_t seed = 7;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::string kBytes =
      "a\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf3\xf4\xf5\xff";
  int open = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint32_t size = random() % 9; text.size() < size;) text += kBytes[random() % kBytes.size()];
    const std::string valid = valid_utf8(text);
    REQUIRE(valid == with_replacements(text));
    REQUIRE(valid_utf8_prefix(valid) == valid.size());
    for (size_t at = 0; at < text.size(); ++at) {
      if (next_code_point(text, at).size_bytes > 0) continue;
      REQUIRE(broken_at(text, at).open == begins_character(text.substr(at)));
      open += broken_at(text, at).open;
    }
  }
  CHECK(open > 1000);
  CHECK(valid_utf8("\xf0\x9f\x98z\xe2\x82") == "\xef\xbf\xbdz\xef\xbf\xbd");
}
