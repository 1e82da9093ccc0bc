// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes gzip and Zstandard by their specifications, without the libraries that read them.

#include <cstdint>
#include <string>

namespace slipstream::tests {

inline std::string little(uint32_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  return out;
}

inline uint32_t crc32_of(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

/// A gzip member of blocks that are stored, not compressed (RFC 1952, RFC 1951 section 3.2.4).
inline std::string gzip(const std::string& text, size_t block_bytes = 60000) {
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
  for (size_t at = 0;; at += block_bytes) {
    const std::string block = text.substr(at, block_bytes);
    const bool last = at + block_bytes >= text.size();
    const auto size = static_cast<uint32_t>(block.size());
    out += static_cast<char>(last ? 1 : 0);
    out += little(size, 2) + little(~size, 2) + block;
    if (last) break;
  }
  return out + little(crc32_of(text), 4) + little(static_cast<uint32_t>(text.size()), 4);
}

/// A Zstandard frame of raw blocks with a window of 128 KiB (RFC 8878, sections 3.1.1.1 and 3.1.1.2).
inline std::string zstd(const std::string& text, size_t block_bytes = 100000) {
  std::string out = little(0xfd2fb528, 4) + std::string("\0\x38", 2);
  for (size_t at = 0;; at += block_bytes) {
    const std::string block = text.substr(at, block_bytes);
    const bool last = at + block_bytes >= text.size();
    out += little(static_cast<uint32_t>(block.size()) << 3 | (last ? 1 : 0), 3) + block;
    if (last) break;
  }
  return out;
}

/// A frame that readers skip (RFC 8878, section 3.1.2).
inline std::string skippable(const std::string& bytes) {
  return little(0x184d2a5e, 4) + little(static_cast<uint32_t>(bytes.size()), 4) + bytes;
}

}  // namespace slipstream::tests
