// SPDX-License-Identifier: Apache-2.0
#pragma once
// The division of sums over rows into blocks, so that their bits do not depend on the number of threads.

#include <cstdint>

namespace slipstream::kernels {

/// At most 64 blocks of at least 16 rows. They are a function of the number of rows alone.
struct RowBlocks {
  int64_t rows = 0;

  constexpr int64_t rows_per_block() const { return rows <= 16 * 64 ? 16 : (rows + 63) / 64; }
  constexpr int64_t count() const { return (rows + rows_per_block() - 1) / rows_per_block(); }
  constexpr int64_t begin(int64_t block) const { return block * rows_per_block(); }
  constexpr int64_t end(int64_t block) const { return begin(block + 1) < rows ? begin(block + 1) : rows; }
};

}  // namespace slipstream::kernels
