// SPDX-License-Identifier: Apache-2.0
// Attention forward on tensor cores (sm_80 and up), for bf16 heads of 64 and 128. Weights never leave registers.
//
// A kernel computes one block of keys (block.cuh). It holds the arguments, which saves instructions.
// Source: Dao 2023, arXiv:2307.08691.

#include "kernels/attention/mma_block.cuh"

namespace slipstream::kernels {
namespace {

/// Drops the weights of a warp's rows; `query` and `key` are the first ones.
template <int kKeys, int kTiles>
__device__ __forceinline__ void drop(float (&weights)[kTiles][kKeys / 8][4], const WeightDropout& dropout, int64_t head,
                                     int64_t query, int64_t key) {
  const DropoutHead of_head = dropout.of(blockIdx.z, head);
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      float factors[4];
      factors_of_rows(factors, dropout, of_head, query + 16 * t, key + 8 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[t][j][i] *= factors[i];
    }
}

/// Runs one thread block per 64 kTiles queries, kKeys keys at a time.
template <int kHead, int kTiles, int kKeys, bool kWhole, typename Masks>
__global__ void __launch_bounds__(kThreads) forward_kernel(AttentionBlockForward args, Masks masks) {
  ptx::after_earlier_kernels();
  SLIP_DYNAMIC_SHARED(bytes);
  const Block<kWhole, AttentionBlockForward> block{args};
  const AttentionForward& all = block.args.all;
  constexpr int kRows = 16 * kTiles * kWarps, kElems = kKeys * kHead;
  const Tile q(bytes, kRows * kHead);
  const auto keys_at = [&](int stage) { return Tile(bytes + 2 * (kRows * kHead + 2 * stage * kElems), kElems); };
  const auto values_at = [&](int stage) {
    return Tile(bytes + 2 * (kRows * kHead + (2 * stage + 1) * kElems), kElems);
  };
  const Shared<int> hidden(bytes + 2 * (kRows * kHead + 4 * kElems), Masks::kHides ? kRows : 0);
  const int of_warp = 16 * kTiles * (static_cast<int>(threadIdx.x) / kWarp), row = lane_of() / 4;
  const QueryRows<kHead, kRows, kKeys> at(block, all, masks);
  const bfloat16* keys = static_cast<const bfloat16*>(all.k) + at.kv_offset;
  const bfloat16* values = static_cast<const bfloat16*>(all.v) + at.kv_offset;
  const auto load_keys = [&](int64_t step) {
    const int stage = static_cast<int>(step % 2);
    load_rows<kKeys, kHead>(keys_at(stage), keys, all.kv_stride, step * kKeys, block.keys());
    load_rows<kKeys, kHead>(values_at(stage), values, all.kv_stride, step * kKeys, block.keys());
  };
  store_hidden<kRows>(hidden, masks, at.begin);
  if (at.first_step < at.steps_end) {  // a last block may have no keys
    load_rows<kRows, kHead>(q, static_cast<const bfloat16*>(all.q) + at.first_row * all.q_stride + at.head * kHead,
                            all.q_stride, at.begin, block.queries());
    load_keys(at.first_step);
  }
  ptx::copy_async_commit();
  const float scale = all.scale * kLog2E;
  float out[kTiles][kHead / 8][4] = {}, largest[kTiles][2], sum[kTiles][2];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (!block.first())
      load_sums<kHead>(out[t], args.carried.out + at.of_head * kHead, at.begin + of_warp + 16 * t, block.queries());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t query = at.begin + of_warp + 16 * t + 8 * half + row;
      const bool carries = !block.first() && query < block.queries();
      // Scores are scaled within the exponents. The sum is distributed over the lanes of a row.
      largest[t][half] = carries ? args.carried.maximum[at.of_head + query] / all.scale : -kInfinity;
      sum[t][half] = carries && lane_of() % 4 == 0 ? args.carried.sum[at.of_head + query] : 0.0f;
    }
  }
  for (int64_t step = at.first_step; step < at.steps_end; ++step) {
    await_stage();
    if (step + 1 < at.steps_end) load_keys(step + 1);
    ptx::copy_async_commit();
    const int stage = static_cast<int>(step % 2);
    const Seen<kTiles, kKeys, Masks::kHides> seen(block, at.begin + of_warp, step, hidden, of_warp);
    if (seen.any()) {
      float scores[kTiles][kKeys / 8][4] = {};
      multiply_rows<kKeys, kHead>(scores, q, of_warp, keys_at(stage));
      if (!seen.all()) seen.hide(scores, -kInfinity);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float highest = largest[t][half];
#pragma unroll
          for (int j = 0; j < kKeys / 8; ++j)
            highest = fmaxf(highest, fmaxf(scores[t][j][2 * half], scores[t][j][2 * half + 1]));
          highest = across_row<true>(highest);
          // In its first tiles a row may see no key.
          const float base = !Masks::kHides || highest > -kInfinity ? highest : 0.0f;
          const float keep = ptx::exp2_approx((largest[t][half] - base) * scale), shift = base * scale;
          largest[t][half] = highest;
          sum[t][half] *= keep;
#pragma unroll
          for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
              scores[t][j][i] =
                  ptx::exp2_approx(scores[t][j][i] * scale - shift);  // one instruction less than scaled differences
              sum[t][half] += scores[t][j][i];
            }
#pragma unroll
          for (int j = 0; j < kHead / 8; ++j) out[t][j][2 * half] *= keep, out[t][j][2 * half + 1] *= keep;
        }
      if constexpr (Masks::kDrops)
        drop<kKeys>(scores, masks.dropout, at.head, block.first_query() + at.begin + of_warp,
                    block.first_key() + step * kKeys);
      multiply_weights<kKeys, kHead>(out, scores, values_at(stage));
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int64_t first = at.begin + of_warp + 16 * t;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[t][half] = across_row<false>(sum[t][half]);
      factor[half] = 1.0f / sum[t][half];
      const int64_t query = first + 8 * half + row;
      if (lane_of() % 4 != 0 || query >= block.queries()) continue;
      if (block.last()) {
        all.lse[at.of_head + query] = largest[t][half] * all.scale + logf(sum[t][half]);
      } else {
        args.carried.maximum[at.of_head + query] = largest[t][half] * all.scale;
        args.carried.sum[at.of_head + query] = sum[t][half];
      }
    }
    if (block.last())
      store_rows<kHead>(static_cast<bfloat16*>(all.out) + at.first_row * all.out_stride + at.head * kHead,
                        all.out_stride, first, block.queries(), out[t], factor);
    else
      store_sums<kHead>(args.carried.out + at.of_head * kHead, kHead, first, block.queries(), out[t], 1.0f);
  }
}

}  // namespace

bool attention_forward_mma(LaunchContext& context, const AttentionBlockForward& args) {
  const AttentionForward& all = args.all;
  if (!fits(args) || !all_aligned(args.carried.out)) return false;
  const bool whole = args.first && args.last && args.block == AttentionBlock{0, all.tokens, 0, all.tokens, true};
  for_head(all.head_dim, [&](auto head) {
    for_flag(whole, [&](auto is_whole) {
      for_masks(args, [&](const auto& masks) {
        using Masks = std::decay_t<decltype(masks)>;
        // Dropout needs the registers of a second tile.
        constexpr int kHead = head.value, kTiles = Masks::kDrops ? 1 : 2, kKeys = kHead == 64 ? 64 : 32,
                      kRows = 16 * kTiles * kWarps;
        launch(stream_of(context), forward_kernel<kHead, kTiles, kKeys, is_whole.value, Masks>,
               grid_of<kTiles>(args.block.queries, all.heads, all.batch), dim3(kThreads),
               bytes_of_rows(kRows + 4 * kKeys, kHead) + bytes_of_hidden<Masks>(kRows), args, masks);
      });
    });
  });
  return true;
}

}  // namespace slipstream::kernels
