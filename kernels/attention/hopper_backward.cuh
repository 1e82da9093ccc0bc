// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sizes of attention backward for sm_90a, the shared memory and the maps of a thread block, and the order of blocks
// of keys and of tiles of queries.

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/hopper_masks.cuh"

namespace slipstream::kernels::hopper {

constexpr int kKeys = 128;  // of a block; a step has 64 queries, or 128 (attention_path.h)
constexpr int kStages = 3;
constexpr int kGroups = 2, kComputingWarps = 4 * kGroups;
constexpr int kBackwardThreads = kGroupThreads * (1 + kGroups);
constexpr int kRegisters = 240, kFewRegisters = 24;  // of a thread that computes, and of a thread that loads
constexpr int kAllRegisters = kGroups * kRegisters + kFewRegisters;
static_assert(kAllRegisters <= (1 + kGroups) * registers_at_launch(kBackwardThreads));
constexpr int kEndsThreads = 256;
// The sums of dq of the key-value heads that are computed at a time: most of the 50 MB L2 cache of an H100.
constexpr int64_t kTogetherBytes = int64_t{40} << 20;

/// The place in a ring of stages. A stage is used in phases of alternating parity, beginning with 0.
template <int kCount>
struct Ring {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kCount) stage = 0, parity ^= 1;
  }
};

/// The keys of a block in two halves of their columns, one after the other. For dq, warpgroup i multiplies half i.
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
  /// Like HeadTile::over_columns().
  __device__ __forceinline__ uint64_t over_columns(int row) const {
    return matrix_descriptor(bytes + kRowBytes * row, 16, 8 * kRowBytes, kSwizzle);
  }
  __host__ __device__ static constexpr uint64_t columns_at(int step) {
    return static_cast<uint64_t>((16 * step / kColumns * kHalfBytes + 16 * step % kColumns * 2) / 16);
  }
  /// An operand whose sums run over keys, for the columns of one half of the tile.
  __device__ __forceinline__ uint64_t over_rows(int half) const {
    return matrix_descriptor(bytes + half * kHalfBytes, kHalfBytes, 8 * kRowBytes, kSwizzle);
  }
  __host__ __device__ static constexpr uint64_t rows_at(int step) {
    return static_cast<uint64_t>(16 * step * kRowBytes / 16);
  }
};

/// The shared memory of a thread block whose steps have kQueries queries.
template <int kHead, int kQueries_>
struct Memory {
  static constexpr int kQueries = kQueries_;
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
  /// The statistics of the queries of every stage: lse in powers of two, and dout . out.
  __device__ __forceinline__ Shared<float> lses() const { return {bytes + kStatisticsAt, kStages * kQueries}; }
  __device__ __forceinline__ Shared<float> deltas() const {
    return {bytes + kStatisticsAt + 4 * kStages * kQueries, kStages * kQueries};
  }
  /// The number of the block of keys.
  __device__ __forceinline__ Shared<int> item() const { return {bytes + kItemAt, 1}; }
  /// The number of blocks of keys that have added to dq of the tile whose turn it is.
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

/// The maps of a block have only its own rows: rows of other blocks are zeros.
template <int kHead, int kQueries>
bool make_maps(Maps& maps, const AttentionBlockBackward& args, std::string& reason) {
  const AttentionBackward& all = args.all;
  const AttentionBlock& block = args.block;
  const auto size = [](int64_t value) { return static_cast<uint64_t>(value); };
  const auto map = [&](TensorMap& to, const char* name, const void* from, int64_t heads, int64_t first, int64_t rows,
                       int64_t stride, int box_rows, int box_columns) {
    if (make_tensor_map(to,
                        {.base = static_cast<const bfloat16*>(from) + first * stride,
                         .rank = 4,
                         .sizes = {kHead, size(heads), size(rows), size(all.batch)},
                         .strides_bytes = {0, 2 * kHead, size(2 * stride), size(2 * all.tokens * stride)},
                         .box = {static_cast<uint32_t>(box_columns), 1, static_cast<uint32_t>(box_rows), 1},
                         .swizzle = box_columns == kSlab ? Swizzle::b128 : Swizzle::b64},
                        reason))
      return true;
    reason = std::string(name) + ": " + reason;
    return false;
  };
  return map(maps.q, "q", all.q, all.heads, block.first_query, block.queries, all.q_stride, kQueries, kSlab) &&
         map(maps.dout, "dout", all.dout, all.heads, block.first_query, block.queries, all.out_stride, kQueries,
             kSlab) &&
         map(maps.k, "k", all.k, all.kv_heads, block.first_key, block.keys, all.kv_stride, kKeys, kHead / 2) &&
         map(maps.v, "v", all.v, all.kv_heads, block.first_key, block.keys, all.kv_stride, kKeys, kSlab);
}

/// The data that thread blocks share.
struct Exchange {
  const float* delta;     // [B, H, T]
  float* dq;              // [B, H, queries, kHead]: sums, columns in the order in which lanes add them
  uint32_t* additions;    // [B, H, tiles]: the number of blocks of keys that have added to a tile
  uint32_t* taken;        // the number of blocks of keys taken so far
  int key_blocks, tiles;  // of a head
  int together;           // the number of key-value heads at a time
};

/// The end of the queries that see a key, from an earlier kernel. It does not descend along the keys.
struct Ends {
  int* queries;     // [B, keys]
  int keys, tiles;  // of the block

  __device__ __forceinline__ int of(int sequence, int key) const {
    return queries[sequence * keys + min(key, keys - 1)];
  }
  /// The end of the tiles that add to dk and dv of a block of keys. The last block also has the tiles that see no key,
  /// and writes their dq.
  template <int kQueries>
  __device__ __forceinline__ int end_tile(int sequence, int key_block) const {
    const int end = (key_block + 1) * kKeys;
    return end >= keys ? tiles : (of(sequence, end - 1) + kQueries - 1) / kQueries;
  }
};

template <typename Kind_, int kQueries_>
struct Arguments {
  using Kind = Kind_;
  static constexpr int kQueries = kQueries_;

  AttentionBlockBackward of;
  Exchange exchange;
  Maps maps;
  Kind masks;
  Ends ends;  // with masks only
};

/// A block of keys of a key-value head, and the tiles of queries that see it.
struct Item {
  int sequence, kv_head, key_block, first_tile, end_tile;
};

/// The block of keys with this number; false after the last one. Among the heads at a time, the first blocks of keys
/// come first: most queries see them, so that short work remains for the end.
template <typename Args>
__device__ __forceinline__ bool item_of(Item& item, const Args& args, int number) {
  const int kv_heads = static_cast<int>(args.of.all.kv_heads), all = static_cast<int>(args.of.all.batch) * kv_heads,
            blocks = args.exchange.key_blocks;
  if (number >= all * blocks) return false;
  const int of_turn = args.exchange.together, first = number / (of_turn * blocks) * of_turn,
            together = min(of_turn, all - first), rest = number - first * blocks, head = first + rest % together,
            block = rest / together;
  item = {head / kv_heads, head % kv_heads, block, args.of.block.causal ? block * (kKeys / Args::kQueries) : 0,
          args.exchange.tiles};
  if constexpr (Args::Kind::kHides) item.end_tile = args.ends.template end_tile<Args::kQueries>(item.sequence, block);
  return true;
}

/// A tile of queries of a head of the group. A block of keys passes through the tiles of a head from the last one to
/// the first, so neighbours that begin together at the same tile stay one step apart.
struct Step {
  int head, tile;
};
template <typename Args>
__device__ __forceinline__ int group_of(const Args& args) {
  return static_cast<int>(args.of.all.heads / args.of.all.kv_heads);
}
template <typename Args>
__device__ __forceinline__ Step first_step(const Args& args, const Item& item) {
  return {item.kv_head * group_of(args), item.end_tile - 1};
}
template <typename Args>
__device__ __forceinline__ int steps_of(const Args& args, const Item& item) {
  return group_of(args) * (item.end_tile - item.first_tile);
}
__device__ __forceinline__ void advance(Step& step, const Item& item) {
  if (--step.tile < item.first_tile) step.tile = item.end_tile - 1, ++step.head;
}
/// The last block of keys that adds to dq of a tile: the block at its own position, or the last one of all.
template <typename Args>
__device__ __forceinline__ int last_block(const Args& args, int tile) {
  return args.of.block.causal ? tile / (kKeys / Args::kQueries) : args.exchange.key_blocks - 1;
}
/// The number of blocks of keys that add to dq of the step's tile before this one.
template <typename Args>
__device__ __forceinline__ int earlier_blocks(const Args& args, const Item& item, const Step& step) {
  if constexpr (!Args::Kind::kHides) return item.key_block;
  const int64_t first_key = args.masks.hidden.before(item.sequence, step.tile * Args::kQueries);
  return item.key_block - min(static_cast<int>(first_key / kKeys), last_block(args, step.tile));
}
/// The index of the head of a step in [B, H].
template <typename Args>
__device__ __forceinline__ int64_t head_of(const Args& args, const Item& item, const Step& step) {
  return item.sequence * args.of.all.heads + step.head;
}

}  // namespace slipstream::kernels::hopper
