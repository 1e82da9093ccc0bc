// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequences of token ids.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace slipstream::data {

/// A read-only, contiguous sequence of token ids. Several threads may read it at once.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  /// Pure.
  virtual int64_t count() const = 0;
  /// Returns true if the source knows where its documents begin. Pure.
  virtual bool has_documents() const { return false; }
  /// Blocks. Reads the ids begin .. begin + out.size() - 1. Appends the ascending indices of `out` at which a document
  /// begins to `documents`, unless that is null. The range must lie in [0, count()). Throws: DataError if the disk
  /// fails or the file changed since it was opened.
  virtual void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const = 0;
  void read(int64_t begin, std::span<int32_t> out) const { read(begin, out, nullptr); }
  /// Tells the disk that the ids begin .. begin + count - 1 will be read soon. Returns before they are in memory.
  virtual void prefetch(int64_t begin, int64_t count) const {
    static_cast<void>(begin);
    static_cast<void>(count);
  }
};

/// Returns a view of `count` ids of another source, from `begin` on.
std::shared_ptr<const TokenSource> slice(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t count);

/// Returns several sources as one, in their order.
std::shared_ptr<const TokenSource> chain(std::vector<std::shared_ptr<const TokenSource>> parts);

/// Returns `source` as one document, followed by `end_of_text` unless that is -1.
std::shared_ptr<const TokenSource> document_of(std::shared_ptr<const TokenSource> source, int32_t end_of_text);

/// Adds documents to a token sequence that has no index of them, but an id that separates them. Returns `source` with
/// documents that begin at each `id` (if `begins`) or after each `id` (otherwise).
std::shared_ptr<const TokenSource> documents_by_id(std::shared_ptr<const TokenSource> source, int32_t id, bool begins);

}  // namespace slipstream::data
