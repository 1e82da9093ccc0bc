// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts in JSON lines: every line is an object whose string "text" is a document.

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/data/text.h"

namespace slipstream::data {

/// True for a line without a document. Pure.
inline bool is_blank_line(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

/// The document of a line that begins at byte `begin` of `path`. Pure. Throws: DataError naming both.
std::string text_of_json_line(std::string_view line, int64_t begin, const std::string& path);

/// Blocks. Passes on the text of every document; the second argument of `take` is the byte of its line.
void for_json_texts(const TextFile& lines, const TakePiece& take);

}  // namespace slipstream::data
