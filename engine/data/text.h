// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text files.

#include <string>

namespace slipstream::data {

/// Blocks. The bytes of the text file `path`; whether they are UTF-8 is the tokenizer's question.
/// Throws: DataError if it is missing, a folder, not a regular file, not readable, or empty.
std::string read_text(const std::string& path);

}  // namespace slipstream::data
