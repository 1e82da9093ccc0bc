// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text files, and their ids.

#include <memory>
#include <string>

#include "engine/data/shards.h"
#include "engine/data/tokenizer.h"

namespace slipstream::data {

/// Blocks. The bytes of the text file `path`; whether they are UTF-8 is the tokenizer's question.
/// Throws: DataError if it is missing, a folder, not a regular file, not readable, or empty.
std::string read_text(const std::string& path);

/// Blocks: one pass over `text`, which checks and counts. Its ids are made when they are read, so that the text alone
/// is kept, and a thread of the loader tokenises the windows of the next step. Throws: DataError as Tokenizer::encode.
std::shared_ptr<const TokenSource> tokens_of_text(std::shared_ptr<const Tokenizer> tokenizer, std::string text);

}  // namespace slipstream::data
