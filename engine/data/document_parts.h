// SPDX-License-Identifier: Apache-2.0
#pragma once
// Divides a text into documents and these into parts that threads encode at the same time.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/text.h"
#include "engine/data/tokenizer.h"

namespace slipstream::data {

/// A part of a document. The next part begins where the encoding of this one ends.
struct DocumentPart {
  std::vector<int32_t> ids;
  int64_t begin = 0;  // bytes of the file before it
  bool first = true;  // it begins a document
  bool last = true;   // it ends a document
};

struct DocumentOptions {
  bool json_lines = false;
  std::string separator;  // ends a document; empty: one document. Not with json_lines
  int threads = 1;
};

/// Where the encoding of a text begins. Value-initialised: at the begin of the file.
struct DocumentPlace {
  int64_t byte = 0;
  bool first = true;  // a document begins here
};

/// Blocks. Encodes the text from `place` on and passes the parts on in order, with the bytes of the file that are done
/// behind each. Throws: DataError (the text, a line that is no JSON object with "text"); errors of `take`.
void encode_documents(const TextFile& text, const Tokenizer& tokenizer, const DocumentOptions& options,
                      DocumentPlace place, const std::function<void(const DocumentPart& part, int64_t done)>& take);

}  // namespace slipstream::data
