// SPDX-License-Identifier: Apache-2.0
// Chains of equal ids in one pass.

#include "kernels/embedding/row_lists.h"

#include <cstddef>

namespace slipstream::kernels {

void RowLists::build(const int32_t* ids, int64_t count, int64_t vocab) {
  if (static_cast<int64_t>(last_.size()) < vocab) last_.resize(static_cast<size_t>(vocab), -1);
  next_.assign(static_cast<size_t>(count), -1);
  firsts_.clear();
  for (int64_t row = 0; row < count; ++row) {
    if (ids[row] < 0) continue;
    int32_t& last = last_[static_cast<size_t>(ids[row])];
    if (last < 0)
      firsts_.push_back(static_cast<int32_t>(row));
    else
      next_[static_cast<size_t>(last)] = static_cast<int32_t>(row);
    last = static_cast<int32_t>(row);
  }
  for (int32_t row : firsts_) last_[static_cast<size_t>(ids[row])] = -1;
}

RowLists& RowLists::mine() {
  thread_local RowLists lists;
  return lists;
}

}  // namespace slipstream::kernels
