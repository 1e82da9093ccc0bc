// SPDX-License-Identifier: Apache-2.0
#pragma once
// Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. Source: RFC 3629, section 4.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace slipstream {

struct CodePoint {
  uint32_t value = 0;
  int size_bytes = 0;  // 1 to 4; 0 if the bytes at this offset are not UTF-8
};

/// Returns the code point that starts at byte `at` (< text.size()). Pure.
inline CodePoint next_code_point(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  const int size = lead >= 0xc2 && lead <= 0xdf ? 2 : (lead & 0xf0) == 0xe0 ? 3 : lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
  if (size == 0 || text.size() - at < static_cast<size_t>(size)) return {};
  uint32_t value = lead & (0x7fu >> size);
  for (int i = 1; i < size; ++i) {
    const uint32_t next = byte(at + static_cast<size_t>(i));
    if ((next & 0xc0) != 0x80) return {};
    value = value << 6 | (next & 0x3f);
  }
  const bool overlong = (size == 3 && value < 0x800) || (size == 4 && value < 0x10000);
  if (overlong || (value >= 0xd800 && value <= 0xdfff) || value > 0x10ffff) return {};
  return {value, size};
}

/// Describes the bytes at `at`, where no code point starts. The size is that of the longest prefix of a code point, at
/// least 1. The flag is true if the text ends with it, so that more bytes may complete it. Source: Unicode 15, D93b.
/// Pure.
struct Broken {
  size_t size_bytes;
  bool open;
};
inline Broken broken_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t lead = byte(at);
  const size_t whole = lead < 0xc2 || lead > 0xf4 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const uint32_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint32_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  size_t size = 1;
  while (size < whole && at + size < text.size()) {
    const uint32_t next = byte(at + size);
    if (next < (size == 1 ? low : 0x80) || next > (size == 1 ? high : 0xbf)) break;
    ++size;
  }
  return {size, size < whole && at + size == text.size()};
}

/// Appends `value` (a code point, not a surrogate) to `out`.
inline void append_code_point(std::string& out, uint32_t value) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xc0 | value >> 6);
    put(0x80 | (value & 0x3f));
  } else if (value < 0x10000) {
    put(0xe0 | value >> 12);
    put(0x80 | (value >> 6 & 0x3f));
    put(0x80 | (value & 0x3f));
  } else {
    put(0xf0 | value >> 18);
    put(0x80 | (value >> 12 & 0x3f));
    put(0x80 | (value >> 6 & 0x3f));
    put(0x80 | (value & 0x3f));
  }
}

/// Returns the offset of the first byte that does not begin a well-formed UTF-8 sequence, or text.size() for valid
/// text. Pure.
inline size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;  // most texts are ASCII
    for (; text.size() - at >= sizeof eight; at += sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080) != 0) break;
    }
    if (at == text.size()) break;
    const int size = next_code_point(text, at).size_bytes;
    if (size == 0) break;
    at += static_cast<size_t>(size);
  }
  return at;
}

/// Returns the text with U+FFFD in the place of each broken part, as the Unicode standard recommends. Pure.
inline std::string valid_utf8(std::string_view text) {
  std::string valid;
  while (true) {
    const size_t good = valid_utf8_prefix(text);
    valid += text.substr(0, good);
    if (good == text.size()) return valid;
    append_code_point(valid, 0xfffd);
    text.remove_prefix(good + broken_at(text, good).size_bytes);
  }
}

}  // namespace slipstream
