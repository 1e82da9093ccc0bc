// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes the token shards of texts.

#include "engine/data/datasets/tokenize_options.h"

namespace slipstream::data {

/// Blocks. Every shard appears complete or not at all. Missing folders are created. The ids do not depend on the number
/// of threads. Each of several texts is one document or has several. Each JSON line is one document. Throws: DataError
/// (the text; a shard, a text or progress that changed before `resume`), ConfigError (the tokenizer; a file that would
/// replace the text or the tokenizer), ResourceError (the folder).
TokenizeSummary tokenize(const TokenizeOptions& options);

}  // namespace slipstream::data
