// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiles of bf16 rows of a head in shared memory, as TMA writes them and wgmma reads them (sm_90a), and their products.

#include <hopper.h>

#include <string>

#include "kernels/attention/mma_tiles.cuh"

namespace slipstream::kernels::hopper {

constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kSlab = 64;           // columns in a row of 128 bytes, the span of the swizzle

/// The reason why the kernels of sm_90a have no code for such heads; empty if they have.
inline std::string hopper_refusal(int64_t head_dim) {
  if (!hopper_compiled()) return "this build has no code for sm_90a";
  if (head_dim == 64 || head_dim == 128) return "";
  return "heads of " + std::to_string(head_dim) + ", need 64 or 128";
}

/// The rows of all heads of all sequences in global memory.
struct HeadRows {
  const void* base = nullptr;  // row 0 of head 0 of sequence 0
  int64_t head_dim = 0, heads = 0, rows = 0, sequences = 0;
  int64_t stride = 0;           // elements between rows
  int64_t sequence_stride = 0;  // elements between sequences
};
/// Makes the map of boxes of `box_rows` rows and 64 columns of a head. The coordinates are column, head, row and
/// sequence. Returns false, with the reason, if TMA cannot take the rows.
inline bool make_head_map(TensorMap& map, const HeadRows& all, int box_rows, std::string& reason) {
  const auto size = [](int64_t value) { return static_cast<uint64_t>(value); };
  return make_tensor_map(
      map,
      {.base = all.base,
       .rank = 4,
       .sizes = {size(all.head_dim), size(all.heads), size(all.rows), size(all.sequences)},
       .strides_bytes = {0, size(2 * all.head_dim), size(2 * all.stride), size(2 * all.sequence_stride)},
       .box = {kSlab, 1, static_cast<uint32_t>(box_rows), 1},
       .swizzle = Swizzle::b128},
      reason);
}

/// kRows rows of a head, as slabs of 64 columns, one after the other. A row of a slab has 128 bytes, and chunk c of 16
/// bytes of row r is at place c ^ (r % 8). `bytes` is a multiple of 1024.
template <int kRows, int kHead>
struct HeadTile {
  static constexpr int kSlabs = kHead / kSlab, kSlabBytes = 128 * kRows, kBytes = kSlabs * kSlabBytes;
  static_assert(kHead % kSlab == 0 && kRows % 8 == 0 && kRows <= 256);

  unsigned char* bytes;

  /// Starts loading rows from `row` on, with zeros for rows that the map does not have. `full` expects kBytes.
  __device__ __forceinline__ void load(const TensorMap& map, Barrier* full, int head, int row, int sequence) const {
#pragma unroll
    for (int i = 0; i < kSlabs; ++i) tma_load<4>(bytes + i * kSlabBytes, map, full, i * kSlab, head, row, sequence);
  }
  /// Starts storing the rows that the map has.
  __device__ __forceinline__ void store(const TensorMap& map, int head, int row, int sequence) const {
#pragma unroll
    for (int i = 0; i < kSlabs; ++i) tma_store<4>(map, bytes + i * kSlabBytes, i * kSlab, head, row, sequence);
  }

  /// An operand whose sums run over columns: 64 rows, or all of them, from row `row` on, which is a multiple of 8.
  __device__ __forceinline__ uint64_t over_columns(int row = 0) const {
    return matrix_descriptor(bytes + 128 * row, 16, 1024, Swizzle::b128);
  }
  /// The offset that moves an operand to columns 16 step to 16 step + 15.
  __device__ __forceinline__ static constexpr uint64_t columns_at(int step) {
    return static_cast<uint64_t>((16 * step / kSlab * kSlabBytes + 16 * step % kSlab * 2) / 16);
  }
  /// An operand whose sums run over rows, with all columns.
  __device__ __forceinline__ uint64_t over_rows() const {
    return matrix_descriptor(bytes, kSlabBytes, 1024, Swizzle::b128);
  }
  /// The offset that moves it to rows 16 step to 16 step + 15.
  __device__ __forceinline__ static constexpr uint64_t rows_at(int step) {
    return static_cast<uint64_t>(16 * step * 128 / 16);
  }

  /// The position of word `lane % 4` of chunk `chunk` of row `row`, in words from the beginning of the tile.
  __device__ __forceinline__ static int word(int row, int chunk) {
    return chunk / 8 * (kSlabBytes / 4) + row * 32 + (chunk % 8 ^ row % 8) * 4 + lane_of() % 4;
  }
};

/// Starts sums = 64 rows of `a` times all rows of `b`, transposed.
template <typename A, typename B, int kHead, int kColumns>
__device__ __forceinline__ void multiply_rows(Accumulator<kColumns>& sums, uint64_t a, uint64_t b) {
#pragma unroll
  for (int step = 0; step < kHead / 16; ++step)
    wgmma<kColumns, Major::k, Major::k>(sums, a + A::columns_at(step), b + B::columns_at(step), step > 0);
}

/// Starts sums += weights times all rows of `b`.
template <typename B, int kHead, int kSteps>
__device__ __forceinline__ void multiply_weights(Accumulator<kHead>& sums, const uint32_t (&weights)[kSteps][4],
                                                 uint64_t b) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    wgmma_registers<kHead, Major::mn>(sums, weights[step], b + B::rows_at(step), true);
}

/// Rounds sums to bf16 as the left side of the next product.
template <int kColumns>
__device__ __forceinline__ void pack(uint32_t (&weights)[kColumns / 16][4], const Accumulator<kColumns>& sums) {
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int first = 8 * step + 4 * (i / 2) + 2 * (i % 2);
      weights[step][i] = ptx::bf16_pair(sums[first], sums[first + 1]);
    }
}

/// sums = rows `begin` + 8 half + lane / 4 of `from` for a warp, with kHead floats each. Unchanged for rows from `end`
/// on.
template <int kHead>
__device__ __forceinline__ void load_sums(Accumulator<kHead>& sums, const float* from, int begin, int end) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = begin + 8 * half + lane_of() / 4;
    if (row >= end) continue;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      const int at = 4 * j + 2 * half;
      ptx::load_pair(from + int64_t{row} * kHead + 8 * j + 2 * (lane_of() % 4), sums[at], sums[at + 1]);
    }
  }
}

/// Writes sums to those rows of `to` that are below `end`.
template <int kHead>
__device__ __forceinline__ void store_sums(float* to, int begin, int end, const Accumulator<kHead>& sums) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = begin + 8 * half + lane_of() / 4;
    if (row >= end) continue;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      const int at = 4 * j + 2 * half;
      ptx::store_pair(to + int64_t{row} * kHead + 8 * j + 2 * (lane_of() % 4), sums[at], sums[at + 1]);
    }
  }
}

/// A value that all lanes share. The compiler keeps it, and the values computed from it, in uniform registers.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(kWholeWarp, value, 0); }

/// Use `n` of a ring of kStages stages. It is computed from a uniform count, because a stage that wraps around would be
/// in a register of every thread.
template <int kStages>
struct Use {
  static_assert((kStages & (kStages - 1)) == 0);
  int stage, parity;  // of the phase of the stage's barriers

  __device__ __forceinline__ explicit Use(int n) : stage(n & (kStages - 1)), parity(n / kStages & 1) {}
};

}  // namespace slipstream::kernels::hopper
