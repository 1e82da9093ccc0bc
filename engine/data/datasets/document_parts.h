// SPDX-License-Identifier: Apache-2.0
#pragma once
// Divides a text into documents, and documents into parts that threads encode at the same time.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/files.h"
#include "engine/data/datasets/json_text.h"
#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::data {

/// A part of a document. The next part begins where the encoding of this one ends.
struct DocumentPart {
  std::vector<int32_t> ids;
  int64_t begin = 0;     // the bytes of the file before it
  bool first = true;     // it begins a document
  bool last = true;      // it ends a document
  bool skipped = false;  // a line that is no document, and therefore has no ids
  int64_t replaced = 0;  // replaced characters, as in JsonLine
};

struct DocumentOptions {
  std::string path;  // the path in errors
  bool json_lines = false;
  std::string text_key = "text";  // for JSON lines
  std::string separator;          // the text that ends a document; empty: there is one document. Not with json_lines
  bool takes_any_bytes = false;   // as in TextInput; otherwise bytes that are no text are refused
  int threads = 1;
};

/// The position at which the encoding of a text begins. The default is the beginning of the file.
struct DocumentPlace {
  int64_t byte = 0;
  bool first = true;  // a document begins here
};

/// Blocks. Encodes the text that `read` reads. The next byte of the text is at `place`. Passes the parts on in order,
/// each with the number of bytes of the text that are then done. Returns the counts of documents of JSON lines. Throws:
/// DataError (the text; lines that are no documents, as DocumentCount::add); errors of `read` and `take`.
DocumentCount encode_documents(const files::ReadBytes& read, const Tokenizer& tokenizer, const DocumentOptions& options,
                               DocumentPlace place,
                               const std::function<void(const DocumentPart& part, int64_t done)>& take);

}  // namespace slipstream::data
