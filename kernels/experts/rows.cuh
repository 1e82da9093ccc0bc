// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared device code of the ops on rows of experts: the rows that exist, and the pack of a thread.

#include <cstdint>

#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {

/// The number of rows that exist. `count` is null for all.
__device__ __forceinline__ int64_t rows_of(const int32_t* count, int64_t max_rows) {
  return count == nullptr ? max_rows : min(static_cast<int64_t>(*count), max_rows);
}

/// The position of a thread: threads count the packs of a row, and then the rows.
template <typename T>
struct PackOfRow {
  int64_t row, column;

  __device__ explicit PackOfRow(int64_t width) {
    const int64_t packs = (width + kPack<T> - 1) / kPack<T>;
    const int64_t pack = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    row = pack / packs;
    column = pack % packs * kPack<T>;
  }
};
template <typename T>
dim3 grid_of_packs(int64_t rows, int64_t width, int threads) {
  return dim3(static_cast<unsigned>(blocks_for(rows * blocks_for(width, kPack<T>), threads)));
}

}  // namespace slipstream::kernels
