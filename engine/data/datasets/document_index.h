// SPDX-License-Identifier: Apache-2.0
#pragma once
// The positions at which the documents of a token file begin.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/files.h"

namespace slipstream::data {

/// Ascending indices of tokens. The index is immutable and may be shared between threads.
class DocumentIndex {
 public:
  virtual ~DocumentIndex() = default;
  /// Blocks. Appends the indices in [begin, end), each reduced by `begin`. Throws: DataError if the disk fails.
  virtual void find(int64_t begin, int64_t end, std::vector<int64_t>& documents) const = 0;
  /// Returns the host memory that the index takes. Pure.
  virtual int64_t resident_bytes() const = 0;
};

/// Makes an index in memory.
std::shared_ptr<const DocumentIndex> make_document_index(std::vector<int64_t> begins);

/// Blocks. Opens the `documents` indices of NAME.documents, uint64. They stay on disk except for one in 512. With
/// `checks`, all of them are compared. Throws: DataError if the file is missing or has another size, or if the indices
/// do not ascend below `tokens`.
std::shared_ptr<const DocumentIndex> open_document_index(const std::string& path, uint64_t documents, int64_t tokens,
                                                         bool checks);

}  // namespace slipstream::data
