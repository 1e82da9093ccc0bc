// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequences of token ids.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace slipstream::data {

/// A read-only, contiguous sequence of token ids. Safe to read from several threads.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  /// Pure.
  virtual int64_t count() const = 0;
  /// True if the source knows where its documents begin. Pure.
  virtual bool has_documents() const { return false; }
  /// Blocks. Reads ids begin .. begin + out.size() - 1, and appends to `documents`, unless it is null, the ascending
  /// indices of `out` at which a document begins. The range must lie in [0, count()).
  /// Throws: DataError if the disk fails or the file changed since it was opened.
  virtual void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const = 0;
  void read(int64_t begin, std::span<int32_t> out) const { read(begin, out, nullptr); }
  /// Tells the disk that ids begin .. begin + count - 1 will be read soon. Returns before they are in memory.
  virtual void prefetch(int64_t begin, int64_t count) const {
    static_cast<void>(begin);
    static_cast<void>(count);
  }
};

/// A view of `count` ids of another source, from `begin` on.
std::shared_ptr<const TokenSource> slice(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t count);

/// Several sources one behind another.
std::shared_ptr<const TokenSource> chain(std::vector<std::shared_ptr<const TokenSource>> parts);

/// One document: `source`, and `end_of_text` behind it unless that is -1.
std::shared_ptr<const TokenSource> document_of(std::shared_ptr<const TokenSource> source, int32_t end_of_text);

/// Documents of token sequences that have no index of them, but an id that separates them: `source` with documents that
/// begin at each `id` (`begins`) or behind each (otherwise).
std::shared_ptr<const TokenSource> documents_by_id(std::shared_ptr<const TokenSource> source, int32_t id, bool begins);

}  // namespace slipstream::data
