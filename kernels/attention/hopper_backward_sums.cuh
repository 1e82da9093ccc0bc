// SPDX-License-Identifier: Apache-2.0
#pragma once
// The results of attention backward for sm_90a: the sums of dq in global memory, in the order of the blocks of keys,
// and dk and dv.

#include "kernels/attention/hopper_backward.cuh"

namespace slipstream::kernels::hopper {

/// Adds a warp's 16 rows of 64 from `begin` on, and kHead / 2 columns, to dq of a tile. `first`: this is the first
/// block of keys that adds to the tile. The last one rounds the sum.
template <int kHead, typename Args>
__device__ __forceinline__ void add_dq(const Args& args, const Item& item, const Step& step, int64_t begin, bool first,
                                       int group, Accumulator<kHead / 2>& dq) {
  constexpr int kColumns = kHead / 2;
  const AttentionBlockBackward& of = args.of;
  const int64_t head = head_of(args, item, step), queries = of.block.queries;
  const bool last = item.key_block == last_block(args, step.tile);
  float sums[kColumns / 8][4];
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sums[i / 4][i % 4] = dq[i];
  const auto query_of = [&](int half) { return begin + 8 * half + lane_of() / 4; };
  const auto at = [&](int half, int pair) {  // of the columns of this lane in sums[2 * pair] and sums[2 * pair + 1]
    return args.exchange.dq + (head * queries + query_of(half)) * kHead + group * kColumns + 4 * (lane_of() % 4) +
           16 * pair;
  };
  if (!last) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (query_of(half) >= queries) continue;
#pragma unroll
      for (int pair = 0; pair < kColumns / 16; ++pair) {
        const float(&left)[4] = sums[2 * pair], (&right)[4] = sums[2 * pair + 1];
        const float mine[4] = {left[2 * half], left[2 * half + 1], right[2 * half], right[2 * half + 1]};
        first ? ptx::store_16(at(half, pair), packed(mine, 0.0f)) : add_16(at(half, pair), mine);
      }
    }
    return;
  }
  if (!first) {
    // All loads are in flight before the first sum: one after the other they took a quarter of the kernel's time.
    float others[2][kColumns / 16][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int pair = 0; pair < kColumns / 16; ++pair)
        if (query_of(half) < queries) unpack(ptx::load_16(at(half, pair)), others[half][pair], 0.0f);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int pair = 0; pair < kColumns / 16; ++pair)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[2 * pair + i / 2][2 * half + i % 2] += others[half][pair][i];
  }
  const int64_t first_row = of.block.first_query,
                of_head = (head * of.all.tokens + first_row) * kHead + group * kColumns;
  if (!of.first) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t query = begin + 8 * half + lane_of() / 4;
      if (query >= queries) continue;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        float low, high;
        ptx::load_pair(of.dq_sum + of_head + query * kHead + 8 * j + 2 * (lane_of() % 4), low, high);
        sums[j][2 * half] += low, sums[j][2 * half + 1] += high;
      }
    }
  }
  if (of.last)
    store_rows<kColumns>(static_cast<bfloat16*>(of.all.dq) +
                             (item.sequence * of.all.tokens + first_row) * of.all.dq_stride + step.head * kHead +
                             group * kColumns,
                         of.all.dq_stride, begin, queries, sums, {of.all.scale, of.all.scale});
  else
    kernels::store_sums<kColumns>(of.dq_sum + of_head, kHead, begin, queries, sums, 1.0f);
}

/// Writes dk and dv of the 16 keys of a warp.
template <int kHead, typename Args>
__device__ __forceinline__ void store_gradients(const Args& args, const Item& item, int begin, Accumulator<kHead>& dk,
                                                Accumulator<kHead>& dv) {
  const AttentionBlockBackward& of = args.of;
  const AttentionBackward& all = of.all;
  const int64_t first_key = item.sequence * all.tokens + of.block.first_key;
  float of_keys[kHead / 8][4], of_values[kHead / 8][4];
#pragma unroll
  for (int i = 0; i < kHead / 2; ++i) of_keys[i / 4][i % 4] = dk[i], of_values[i / 4][i % 4] = dv[i];
  if (of.dkv == nullptr) {
    const int64_t offset = first_key * all.dkv_stride + item.kv_head * kHead;
    store_rows<kHead>(static_cast<bfloat16*>(all.dk) + offset, all.dkv_stride, begin, of.block.keys, of_keys,
                      {all.scale, all.scale});
    store_rows<kHead>(static_cast<bfloat16*>(all.dv) + offset, all.dkv_stride, begin, of.block.keys, of_values,
                      {1.0f, 1.0f});
  } else {
    const int64_t width = all.kv_heads * kHead;
    float* const to = of.dkv + first_key * 2 * width + item.kv_head * kHead;
    kernels::store_sums<kHead>(to, 2 * width, begin, of.block.keys, of_keys, all.scale);
    kernels::store_sums<kHead>(to + width, 2 * width, begin, of.block.keys, of_values, 1.0f);
  }
}

}  // namespace slipstream::kernels::hopper
