// SPDX-License-Identifier: Apache-2.0
#pragma once
// Embedding look-up and its gradients in double, as products with one-hot matrices.

#include <Eigen/Core>
#include <cstdint>
#include <vector>

namespace slipstream::reference {

using Table = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Row i is 1 at column ids[i].
inline Table one_hot(const std::vector<int32_t>& ids, int64_t vocab) {
  Table hot = Table::Zero(static_cast<Eigen::Index>(ids.size()), vocab);
  for (size_t i = 0; i < ids.size(); ++i) hot(static_cast<Eigen::Index>(i), ids[i]) = 1.0;
  return hot;
}

inline Table embed(const Table& hot_ids, const Table& table, const Table& hot_positions, const Table& positions) {
  return hot_ids * table + hot_positions * positions;
}

inline Table embed_dtable(const Table& hot, const Table& dy) { return hot.transpose() * dy; }

}  // namespace slipstream::reference
