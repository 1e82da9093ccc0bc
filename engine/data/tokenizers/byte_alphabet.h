// SPDX-License-Identifier: Apache-2.0
#pragma once
// The printable character of every byte in byte-level vocabularies. Source: openai/gpt-2, encoder.py, bytes_to_unicode.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace slipstream::data {

/// Pure.
uint32_t character_of_byte(unsigned char byte);
/// Returns the characters of all bytes of `bytes`, as UTF-8. Pure.
std::string characters_of_bytes(std::string_view bytes);
/// Returns the bytes of `characters`, or none if a character belongs to no byte. Pure.
std::optional<std::string> bytes_of_characters(std::string_view characters);

}  // namespace slipstream::data
