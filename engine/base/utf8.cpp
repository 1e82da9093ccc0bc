// SPDX-License-Identifier: Apache-2.0
// Walks UTF-8 sequences by the table of well-formed bytes.

#include "engine/base/utf8.h"

#include <cstdint>

namespace slipstream {
namespace {

/// Bytes of the well-formed sequence at `text[at]`; 0 when it is malformed.
size_t sequence_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const auto between = [](unsigned b, unsigned low, unsigned high) { return b >= low && b <= high; };
  const unsigned lead = byte(at);
  if (lead < 0x80) return 1;
  if (between(lead, 0xC2, 0xDF)) return between(byte(at + 1), 0x80, 0xBF) ? 2 : 0;
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (!between(byte(at + 1), low, high) || !between(byte(at + 2), 0x80, 0xBF)) return 0;
  if (between(lead, 0xE0, 0xEF)) return 3;
  if (between(lead, 0xF0, 0xF4)) return between(byte(at + 3), 0x80, 0xBF) ? 4 : 0;
  return 0;
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = sequence_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

}  // namespace slipstream
