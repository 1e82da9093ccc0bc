// SPDX-License-Identifier: Apache-2.0
#pragma once
// The position at which tokenize continues after an interruption, with hashes of all that was read and written before
// it.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/datasets/document_parts.h"
#include "engine/data/datasets/json_text.h"
#include "engine/data/datasets/text_sequence.h"
#include "engine/data/datasets/tokenize_options.h"

namespace slipstream::data {

/// The end of the last complete shard.
struct TokenizeProgress {
  std::string made_of;      // everything that the ids depend on except the bytes of the texts
  int64_t text = 0;         // the index of the text that the next token belongs to
  DocumentPlace part;       // the unfinished part of that text
  int64_t skip = 0;         // the tokens of that part in complete shards
  DocumentCount documents;  // the documents that end before that part
  int64_t text_bytes = 0;   // at least all bytes of the texts that complete shards depend on
  std::string text_hash;    // the hash of these bytes
  std::vector<TokenizeSummary::Shard> shards;
};

/// Blocks. Writes OUT.progress.json, and hashes the sidecar and the documents of the last shard. Throws: ResourceError.
void write_progress(const TokenizeOptions& options, TokenizeProgress& progress);

/// Blocks. Replaces `progress` by the contents of OUT.progress.json if there is one. Reads `texts` up to its position,
/// and all shards. Throws: DataError if the file was changed or has another `made_of`, if the texts before the position
/// have changed, or if a shard is missing or was changed.
void read_progress(const TokenizeOptions& options, TextSequence& texts, TokenizeProgress& progress);

}  // namespace slipstream::data
