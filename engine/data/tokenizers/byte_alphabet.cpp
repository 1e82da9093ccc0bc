// SPDX-License-Identifier: Apache-2.0
// Printable bytes stand for themselves. The other 68 bytes stand, in their order, for the characters from U+0100 on.

#include "engine/data/tokenizers/byte_alphabet.h"

#include <array>

#include "engine/base/utf8.h"

namespace slipstream::data {
namespace {

struct Alphabet {
  std::array<uint32_t, 256> characters{};
  std::array<int16_t, 0x144> bytes{};

  Alphabet() {
    bytes.fill(-1);
    uint32_t other = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      characters[byte] = printable ? byte : other++;
      bytes[characters[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

uint32_t character_of_byte(unsigned char byte) { return alphabet().characters[byte]; }

std::string characters_of_bytes(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) append_code_point(out, character_of_byte(static_cast<unsigned char>(byte)));
  return out;
}

std::optional<std::string> bytes_of_characters(std::string_view characters) {
  std::string out;
  for (size_t at = 0; at < characters.size();) {
    const CodePoint point = next_code_point(characters, at);
    if (point.size_bytes == 0 || point.value >= alphabet().bytes.size() || alphabet().bytes[point.value] < 0)
      return std::nullopt;
    out += static_cast<char>(static_cast<unsigned char>(alphabet().bytes[point.value]));
    at += static_cast<size_t>(point.size_bytes);
  }
  return out;
}

}  // namespace slipstream::data
