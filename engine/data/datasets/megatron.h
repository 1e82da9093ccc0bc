// SPDX-License-Identifier: Apache-2.0
#pragma once
// The index of a token file of Megatron-LM (engine/data/datasets/foreign_tokens.h describes its format).

#include <cstdint>
#include <memory>
#include <string>

#include "engine/data/datasets/document_index.h"
#include "engine/data/datasets/raw_tokens.h"

namespace slipstream::data {

struct MegatronIndex {
  IdType type = IdType::u16;
  int64_t count = 0;  // the tokens of all sequences
  std::shared_ptr<const DocumentIndex> documents;
  std::string hash;  // the hash of the index
};

/// Blocks. Checks every count, length and offset against the sizes of both files: sequences must follow each other in
/// `tokens_path` without holes, and documents must be made of whole sequences. Allocates 8 bytes per document.
/// Throws: DataError.
MegatronIndex read_megatron_index(const std::string& path, const std::string& tokens_path);

}  // namespace slipstream::data
