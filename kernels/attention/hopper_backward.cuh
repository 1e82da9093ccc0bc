// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sizes of attention backward for sm_90a, the shared memory of a thread block, and the order of blocks of keys and of
// tiles of queries.

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/hopper_tiles.cuh"

namespace slipstream::kernels::hopper {

constexpr int kKeys = 128, kQueries = 64;  // of a block and of a step
constexpr int kStages = 3;
constexpr int kGroups = 2, kComputingWarps = 4 * kGroups;
constexpr int kBackwardThreads = kGroupThreads * (1 + kGroups);
constexpr int kRegisters = 240, kFewRegisters = 24;  // of a thread that computes, and of one that loads
constexpr int kAllRegisters = kGroups * kRegisters + kFewRegisters;
static_assert(kAllRegisters <= (1 + kGroups) * registers_at_launch(kBackwardThreads));
// Key-value heads that are computed at a time: few, so that their sums of dq stay in the L2 cache, and as many as fill
// the multiprocessors with blocks of 1024 keys.
constexpr int kTogether = 16;

/// Place in a ring of stages. A stage is used in phases of alternating parity, beginning with 0.
template <int kCount>
struct Ring {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kCount) stage = 0, parity ^= 1;
  }
};

/// The keys of a block in two halves of their columns, one behind the other. Warpgroup i multiplies half i for dq.
template <int kHead>
struct KeyTile {
  static constexpr int kColumns = kHead / 2, kRowBytes = 2 * kColumns, kHalfBytes = kKeys * kRowBytes,
                       kBytes = 2 * kHalfBytes;
  static constexpr Swizzle kSwizzle = kRowBytes == 128 ? Swizzle::b128 : Swizzle::b64;

  unsigned char* bytes;

  __device__ __forceinline__ void load(const TensorMap& map, Barrier* full, int head, int row, int sequence) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) tma_load<4>(bytes + i * kHalfBytes, map, full, i * kColumns, head, row, sequence);
  }
  /// As those of HeadTile.
  __device__ __forceinline__ uint64_t over_columns(int row) const {
    return matrix_descriptor(bytes + kRowBytes * row, 16, 8 * kRowBytes, kSwizzle);
  }
  __host__ __device__ static constexpr uint64_t columns_at(int step) {
    return static_cast<uint64_t>((16 * step / kColumns * kHalfBytes + 16 * step % kColumns * 2) / 16);
  }
  /// An operand whose sums run over keys, with the columns of a half.
  __device__ __forceinline__ uint64_t over_rows(int half) const {
    return matrix_descriptor(bytes + half * kHalfBytes, kHalfBytes, 8 * kRowBytes, kSwizzle);
  }
  __host__ __device__ static constexpr uint64_t rows_at(int step) {
    return static_cast<uint64_t>(16 * step * kRowBytes / 16);
  }
};

/// Shared memory of a thread block.
template <int kHead>
struct Memory {
  using Keys = KeyTile<kHead>;
  using Values = HeadTile<kKeys, kHead>;
  using Queries = HeadTile<kQueries, kHead>;
  using Slopes = HeadTile<kKeys, kQueries>;  // a row is a key
  static constexpr int kRingAt = Keys::kBytes + Values::kBytes, kSlopesAt = kRingAt + 2 * kStages * Queries::kBytes,
                       kStatisticsAt = kSlopesAt + 2 * Slopes::kBytes,
                       kBarriersAt = kStatisticsAt + 8 * kStages * kQueries,
                       kItemAt = kBarriersAt + 8 * (2 * kStages + 6), kBytes = kItemAt + 16;

  unsigned char* bytes;

  __device__ __forceinline__ Keys keys() const { return {bytes}; }
  __device__ __forceinline__ Values values() const { return {bytes + Keys::kBytes}; }
  __device__ __forceinline__ Queries queries(int stage) const {
    return {bytes + kRingAt + 2 * stage * Queries::kBytes};
  }
  __device__ __forceinline__ Queries gradients(int stage) const {
    return {bytes + kRingAt + (2 * stage + 1) * Queries::kBytes};
  }
  __device__ __forceinline__ Slopes slopes(int turn) const { return {bytes + kSlopesAt + turn * Slopes::kBytes}; }
  /// Statistics of the queries of every stage: lse in powers of two, and dout . out.
  __device__ __forceinline__ Shared<float> lses() const { return {bytes + kStatisticsAt, kStages * kQueries}; }
  __device__ __forceinline__ Shared<float> deltas() const {
    return {bytes + kStatisticsAt + 4 * kStages * kQueries, kStages * kQueries};
  }
  /// The number of the block of keys.
  __device__ __forceinline__ Shared<int> item() const { return {bytes + kItemAt, 1}; }
  /// Blocks of keys that have added to dq of the tile whose turn it is.
  __device__ __forceinline__ Shared<int> additions() const { return {bytes + kItemAt + 4, 1}; }

  __device__ __forceinline__ Barrier* barriers(int i) const {
    return reinterpret_cast<Barrier*>(bytes + kBarriersAt) + i;
  }
  __device__ __forceinline__ Barrier* full(int stage) const { return barriers(stage); }
  __device__ __forceinline__ Barrier* free(int stage) const { return barriers(kStages + stage); }
  __device__ __forceinline__ Barrier* slopes_full(int turn) const { return barriers(2 * kStages + turn); }
  __device__ __forceinline__ Barrier* keys_full() const { return barriers(2 * kStages + 2); }
  __device__ __forceinline__ Barrier* keys_free() const { return barriers(2 * kStages + 3); }
  __device__ __forceinline__ Barrier* may_add() const { return barriers(2 * kStages + 4); }
  __device__ __forceinline__ Barrier* added() const { return barriers(2 * kStages + 5); }
};

struct Maps {
  TensorMap q, dout, k, v;
};

/// What thread blocks share.
struct Exchange {
  const float* delta;     // [B, H, T]
  float* dq;              // [B, H, queries, kHead]: sums, columns in the order in which lanes add them
  uint32_t* additions;    // [B, H, tiles]: blocks of keys that have added to a tile
  uint32_t* taken;        // blocks of keys taken so far
  int key_blocks, tiles;  // of a head
};

struct Arguments {
  AttentionBlockBackward of;
  Exchange exchange;
  Maps maps;
};

/// A block of keys of a key-value head, and the tiles of 64 queries that see it.
struct Item {
  int sequence, kv_head, key_block, first_tile;
};

/// The block of keys with this number; false behind the last one.
__device__ __forceinline__ bool item_of(Item& item, const Arguments& args, int number) {
  const int kv_heads = static_cast<int>(args.of.all.kv_heads), all = static_cast<int>(args.of.all.batch) * kv_heads,
            blocks = args.exchange.key_blocks;
  if (number >= all * blocks) return false;
  const int first = number / (kTogether * blocks) * kTogether, together = min(kTogether, all - first),
            rest = number - first * blocks, head = first + rest % together, block = blocks - 1 - rest / together;
  item = {head / kv_heads, head % kv_heads, block, args.of.block.causal ? block * (kKeys / kQueries) : 0};
  return true;
}

/// A tile of queries of a head of the group.
struct Step {
  int head, tile;
};
__device__ __forceinline__ int group_of(const Arguments& args) {
  return static_cast<int>(args.of.all.heads / args.of.all.kv_heads);
}
__device__ __forceinline__ Step first_step(const Arguments& args, const Item& item) {
  return {item.kv_head * group_of(args), item.first_tile};
}
__device__ __forceinline__ int steps_of(const Arguments& args, const Item& item) {
  return group_of(args) * (args.exchange.tiles - item.first_tile);
}
__device__ __forceinline__ void advance(Step& step, const Arguments& args, const Item& item) {
  if (++step.tile == args.exchange.tiles) step.tile = item.first_tile, ++step.head;
}
/// The head of a step in [B, H].
__device__ __forceinline__ int64_t head_of(const Arguments& args, const Item& item, const Step& step) {
  return item.sequence * args.of.all.heads + step.head;
}

}  // namespace slipstream::kernels::hopper
