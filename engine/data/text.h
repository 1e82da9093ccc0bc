// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text files and their token ids.

#include <memory>
#include <string>

#include "engine/data/shards.h"
#include "engine/data/tokenizer.h"

namespace slipstream::data {

/// Blocks. The bytes of the text file `path`. The tokenizer checks UTF-8.
/// Throws: DataError if it is missing, a folder, not a regular file, not readable, or empty.
std::string read_text(const std::string& path);

/// Blocks: one pass over `text` checks it and counts its ids. Only the text stays in memory. Ids are encoded when they
/// are read, for the next step on the loader's thread. Throws: DataError as Tokenizer::encode.
std::shared_ptr<const TokenSource> tokens_of_text(std::shared_ptr<const Tokenizer> tokenizer, std::string text);

}  // namespace slipstream::data
