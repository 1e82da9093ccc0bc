// SPDX-License-Identifier: Apache-2.0
#pragma once
// The masks of attention for sm_90a: keys that a window or documents hide, and dropout of weights.
//
// A kernel is compiled for each kind of masks, so that a kernel without masks has no code for them. The first visible
// key does not descend along the queries. A tile of queries therefore sees the tiles of keys from the first visible key
// of its first query on, and the tiles of queries that see a tile of keys follow one another.

#include "kernels/attention/hopper_tiles.cuh"
#include "kernels/attention/masks.cuh"

namespace slipstream::kernels::hopper {

/// The number of keys before the first one that the query sees. Queries and keys count from the beginning of the block.
template <typename Kind>
__device__ __forceinline__ int first_key(const Kind& masks, int sequence, int query) {
  return static_cast<int>(masks.hidden.before(sequence, query));
}

/// The reason why the kernels have no code for these masks; empty if they have. One call of Philox decides about four
/// keys whose positions begin at a multiple of four.
template <typename Args>
std::string masks_refusal(const Args& args) {
  if (args.all.dropout == nullptr || WeightDropout::in_fours(args)) return "";
  return "dropout of chunks of " + std::to_string(args.all.keys.chunk_tokens()) + " tokens, need a multiple of 4";
}

/// The weights of a tile that dropout keeps. Bit i % 32 of word i / 32 stands for element i of a warp's accumulator of
/// 16 rows and kColumns columns.
template <int kColumns>
struct Kept {
  int words[kColumns / 64];

  __device__ __forceinline__ bool operator[](int i) const { return (words[i / 32] >> i % 32 & 1) != 0; }
};

/// The data that decides about the weights of a head, in kernels that drop.
__device__ __forceinline__ DropoutHead dropout_of(const Masks<true, true>& masks, int sequence, int head) {
  return masks.dropout.of(sequence, head);
}
template <typename Kind>
__device__ __forceinline__ int dropout_of(const Kind&, int, int) {
  return 0;
}

/// Bit i is set if the weight of key 4 * four + i is kept. Query and key are positions.
__device__ __forceinline__ uint32_t kept_four(const Masks<true, true>& masks, const DropoutHead& head, uint32_t query,
                                              uint32_t four) {
  uint32_t words[4], bits = 0;
  WeightDropout::words_of(words, head, query, four);
#pragma unroll
  for (int i = 0; i < 4; ++i) bits |= words[i] >= masks.dropout.threshold ? 1u << i : 0;
  return bits;
}

/// Exchanges bits between lanes that are `apart` apart: the bits of `mask` in the second lane, shifted by `shift`, with
/// the others in the first one.
__device__ __forceinline__ uint32_t exchanged(uint32_t bits, int apart, uint32_t mask, int shift) {
  const uint32_t others = __shfl_xor_sync(kWholeWarp, bits, apart);
  return (lane_of() & apart) == 0 ? (bits & mask) | (others & mask) << shift
                                  : (bits & ~mask) | (others & ~mask) >> shift;
}

/// Rows are queries from `first_query` on, and columns are keys from `first_key` on. Two neighbours share eight keys of
/// two rows, and each draws for four of them in one row.
template <int kColumns>
__device__ __forceinline__ Kept<kColumns> kept_keys(const Masks<true, true>& masks, const DropoutHead& head,
                                                    int first_query, int first_key) {
  const WeightDropout& dropout = masks.dropout;
  const int lane = lane_of();
  const uint32_t query = dropout.queries.of(masks.hidden.block.first_query + first_query + lane / 4 + 8 * (lane % 2));
  const int64_t key = masks.hidden.block.first_key + first_key + 4 * (lane / 2 % 2);
  Kept<kColumns> kept = {};
#pragma unroll
  for (int word = 0; word < kColumns / 64; ++word) {
    uint32_t bits = 0;
#pragma unroll 2
    for (int j = 0; j < 8; ++j)
      bits |= kept_four(masks, head, query, dropout.keys.of(key + 8 * (8 * word + j)) / 4) << 4 * j;
    kept.words[word] = static_cast<int>(exchanged(bits, 1, 0x33333333u, 2));
  }
  return kept;
}

/// Rows are keys from `first_key` on, and columns are queries from `first_query` on. Four lanes share four keys of two
/// rows and two queries, and each draws for four keys.
template <int kColumns>
__device__ __forceinline__ Kept<kColumns> kept_queries(const Masks<true, true>& masks, const DropoutHead& head,
                                                       int first_query, int first_key) {
  const WeightDropout& dropout = masks.dropout;
  int lane = lane_of();
  ptx::make_again(lane);  // otherwise what follows from it would stay in registers of a kernel that has none to spare
  const int turn = lane / 4 % 4;
  const int64_t query = masks.hidden.block.first_query + first_query + 2 * (lane % 4) + turn % 2;
  const uint32_t four = dropout.keys.of(masks.hidden.block.first_key + first_key + lane / 16 * 4 + turn / 2 * 8) / 4;
  Kept<kColumns> kept = {};
#pragma unroll
  for (int word = 0; word < kColumns / 64; ++word) {
    uint32_t bits = 0;
#pragma unroll 1
    for (int j = 0; j < 8; ++j)
      bits |= kept_four(masks, head, dropout.queries.of(query + 8 * (8 * word + j)), four) << 4 * j;
    kept.words[word] = static_cast<int>(exchanged(exchanged(bits, 4, 0x55555555u, 1), 8, 0x33333333u, 2));
  }
  return kept;
}

}  // namespace slipstream::kernels::hopper
