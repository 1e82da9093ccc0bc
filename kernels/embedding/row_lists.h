// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows with the same id, as chains of row numbers in ascending order, one chain per id.

#include <cstdint>
#include <vector>

namespace slipstream::kernels {

/// The memory grows to the largest problem so far and is kept. mine() returns the lists of the calling thread.
class RowLists {
 public:
  /// Links the rows of ids[0..count). Ids below 0 are left out, and every id must be below `vocab`. O(count).
  void build(const int32_t* ids, int64_t count, int64_t vocab);

  /// The first rows of all chains, ascending. Valid until the next build.
  const std::vector<int32_t>& firsts() const { return firsts_; }
  /// next()[row] is the following row with the same id, or -1.
  const std::vector<int32_t>& next() const { return next_; }

  /// The lists of the calling thread.
  static RowLists& mine();

 private:
  std::vector<int32_t> last_;  // per id; -1 between builds: only touched entries are reset, not the whole vocabulary
  std::vector<int32_t> next_;
  std::vector<int32_t> firsts_;
};

}  // namespace slipstream::kernels
