// SPDX-License-Identifier: Apache-2.0
// Attention backward on tensor cores (sm_80 and up), for bf16 heads of 64 and 128. Weights never leave registers.
//
// A kernel computes one block of keys (block.cuh) and refers to its arguments.
// Source: Dao 2023, arXiv:2307.08691. dq has a kernel of its own, so no sum depends on the order of blocks.

#include "kernels/attention/mma_block.cuh"

namespace slipstream::kernels {
namespace {

/// Computes dq with one thread block per 64 kTiles queries, kKeys keys at a time.
template <int kHead, int kTiles, int kKeys, bool kWhole, typename Masks>
__global__ void __launch_bounds__(kThreads) query_kernel(AttentionBlockBackward args, const float* delta, Masks masks) {
  ptx::after_earlier_kernels();
  SLIP_DYNAMIC_SHARED(bytes);
  const AttentionBackward& all = args.all;
  const Block<kWhole, const AttentionBlockBackward&> block{args};
  constexpr int kRows = 16 * kTiles * kWarps, kRowElems = kRows * kHead, kElems = kKeys * kHead;
  const Tile q(bytes, kRowElems), d(bytes + 2 * kRowElems, kRowElems);
  const auto keys_at = [&](int stage) { return Tile(bytes + 2 * (2 * kRowElems + 2 * stage * kElems), kElems); };
  const auto values_at = [&](int stage) {
    return Tile(bytes + 2 * (2 * kRowElems + (2 * stage + 1) * kElems), kElems);
  };
  const Shared<int> hidden(bytes + 2 * (2 * kRowElems + 4 * kElems), Masks::kHides ? kRows : 0);
  const int of_warp = 16 * kTiles * (static_cast<int>(threadIdx.x) / kWarp), row = lane_of() / 4;
  const QueryRows<kHead, kRows, kKeys> at(block, all, masks);
  const auto load_keys = [&](int64_t step) {
    const int stage = static_cast<int>(step % 2);
    load_rows<kKeys, kHead>(keys_at(stage), static_cast<const bfloat16*>(all.k) + at.kv_offset, all.kv_stride,
                            step * kKeys, block.keys());
    load_rows<kKeys, kHead>(values_at(stage), static_cast<const bfloat16*>(all.v) + at.kv_offset, all.kv_stride,
                            step * kKeys, block.keys());
  };
  store_hidden<kRows>(hidden, masks, at.begin);
  if (at.first_step < at.steps_end) {
    load_rows<kRows, kHead>(q, static_cast<const bfloat16*>(all.q) + at.first_row * all.q_stride + at.head * kHead,
                            all.q_stride, at.begin, block.queries());
    load_rows<kRows, kHead>(d, static_cast<const bfloat16*>(all.dout) + at.first_row * all.out_stride + at.head * kHead,
                            all.out_stride, at.begin, block.queries());
    load_keys(at.first_step);
  }
  ptx::copy_async_commit();
  float lse[kTiles][2], slope[kTiles][2], dq[kTiles][kHead / 8][4] = {};
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (!block.first())
      load_sums<kHead>(dq[t], args.dq_sum + at.of_head * kHead, at.begin + of_warp + 16 * t, block.queries());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t query = at.begin + of_warp + 16 * t + 8 * half + row;
      lse[t][half] = query < block.queries() ? all.lse[at.of_head + query] * kLog2E : kInfinity;
      slope[t][half] = query < block.queries() ? delta[at.of_head + query] : 0.0f;
    }
  }
  const float scale = all.scale * kLog2E;
  for (int64_t step = at.first_step; step < at.steps_end; ++step) {
    await_stage();
    if (step + 1 < at.steps_end) load_keys(step + 1);
    ptx::copy_async_commit();
    const int stage = static_cast<int>(step % 2);
    const Seen<kTiles, kKeys, Masks::kHides> seen(block, at.begin + of_warp, step, hidden, of_warp);
    if (seen.any()) {
      float scores[kTiles][kKeys / 8][4] = {}, slopes[kTiles][kKeys / 8][4] = {};
      multiply_rows<kKeys, kHead>(scores, q, of_warp, keys_at(stage));
      multiply_rows<kKeys, kHead>(slopes, d, of_warp, values_at(stage));
      if (!seen.all()) {
        seen.hide(scores, -kInfinity);
        seen.hide(slopes, 0.0f);  // 0 times a value of a hidden key may be NaN
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
          if constexpr (Masks::kDrops) {
            float factors[4];
            factors_of_rows(factors, masks.dropout, masks.dropout.of(blockIdx.z, at.head),
                            block.first_query() + at.begin + of_warp + 16 * t,
                            block.first_key() + step * kKeys + 8 * j);
#pragma unroll
            for (int i = 0; i < 4; ++i) slopes[t][j][i] *= factors[i];
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float weight = ptx::exp2_approx(scores[t][j][i] * scale - lse[t][i / 2]);
            slopes[t][j][i] = weight * (slopes[t][j][i] - slope[t][i / 2]);
          }
        }
      multiply_weights<kKeys, kHead>(dq, slopes, keys_at(stage));
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int64_t first = at.begin + of_warp + 16 * t;
    if (block.last())
      store_rows<kHead>(static_cast<bfloat16*>(all.dq) + at.first_row * all.dq_stride + at.head * kHead, all.dq_stride,
                        first, block.queries(), dq[t], {all.scale, all.scale});
    else
      store_sums<kHead>(args.dq_sum + at.of_head * kHead, kHead, first, block.queries(), dq[t], 1.0f);
  }
}

/// Computes dk and dv with one thread block per 64 kTiles keys, over the heads of the group in order. Scores are
/// computed transposed, with a warp's keys down and kQueries queries across, so that they are the left side of both
/// sums over queries.
template <int kHead, int kTiles, int kQueries, bool kWhole, typename Masks>
__global__ void __launch_bounds__(kThreads) key_kernel(AttentionBlockBackward args, const float* delta, Masks masks) {
  ptx::after_earlier_kernels();
  SLIP_DYNAMIC_SHARED(bytes);
  const AttentionBackward& all = args.all;
  const Block<kWhole, const AttentionBlockBackward&> block{args};
  constexpr int kRows = 16 * kTiles * kWarps, kRowElems = kRows * kHead, kElems = kQueries * kHead;
  const Tile k(bytes, kRowElems), v(bytes + 2 * kRowElems, kRowElems);
  const auto queries_at = [&](int stage) { return Tile(bytes + 2 * (2 * kRowElems + 2 * stage * kElems), kElems); };
  const auto gradients_at = [&](int stage) {
    return Tile(bytes + 2 * (2 * kRowElems + (2 * stage + 1) * kElems), kElems);
  };
  unsigned char* const behind = bytes + 2 * (2 * kRowElems + 4 * kElems);
  const Shared<float> lses(behind, 2 * kQueries), deltas(behind + 8 * kQueries, 2 * kQueries);  // of both stages
  const Shared<int> hidden(behind + 16 * kQueries, Masks::kHides ? 2 * kQueries : 0);
  const int thread = static_cast<int>(threadIdx.x), of_warp = 16 * kTiles * (thread / kWarp), row = lane_of() / 4,
            column = 2 * (lane_of() % 4);
  const int64_t key_begin = int64_t{blockIdx.x} * kRows, kv_head = blockIdx.y, group = all.heads / all.kv_heads;
  const int64_t first_row = blockIdx.z * all.tokens + block.first_query(),
                first_key = blockIdx.z * all.tokens + block.first_key();
  const int64_t kv_offset = first_key * all.kv_stride + kv_head * kHead, query_begin = block.causal() ? key_begin : 0;
  int64_t seeing_end = 0;
  if constexpr (Masks::kHides) seeing_end = masks.hidden.queries_end(blockIdx.z, query_begin, key_begin + kRows);
  // Without masks it is read at each use and takes no register.
  const auto queries_end = [&] { return Masks::kHides ? seeing_end : block.queries(); };
  // A step is kQueries queries of a head. It is a counter, because a division would need more registers than there are.
  struct Step {
    int head, begin, stage = 0;
  };
  const auto advance = [&](Step& step) {
    step.stage ^= 1, step.begin += kQueries;
    if (step.begin >= queries_end()) step.begin = static_cast<int>(query_begin), ++step.head;
  };
  const int heads_end = static_cast<int>(kv_head * group + group);
  float next_lse = 0.0f, next_delta = 0.0f;
  int next_hidden = 0;
  const auto load_queries = [&](const Step& step) {
    const auto& [head, begin, stage] = step;
    load_rows<kQueries, kHead>(queries_at(stage),
                               static_cast<const bfloat16*>(all.q) + first_row * all.q_stride + head * kHead,
                               all.q_stride, begin, block.queries());
    load_rows<kQueries, kHead>(gradients_at(stage),
                               static_cast<const bfloat16*>(all.dout) + first_row * all.out_stride + head * kHead,
                               all.out_stride, begin, block.queries());
    if (thread < kQueries) {
      const int64_t index = row_of_head(all, head, block.first_query()) + begin + thread;
      next_lse = begin + thread < block.queries() ? all.lse[index] * kLog2E : kInfinity;
      next_delta = begin + thread < block.queries() ? delta[index] : 0.0f;
      next_hidden = static_cast<int>(masks.hidden.before(blockIdx.z, begin + thread));
    }
  };
  // These stay in registers while the previous step is computed.
  const auto keep_statistics = [&](const Step& step) {
    const int at = step.stage * kQueries + thread;
    if (thread < kQueries) lses[at] = next_lse, deltas[at] = next_delta;
    if (Masks::kHides && thread < kQueries) hidden[at] = next_hidden;
  };
  load_rows<kRows, kHead>(k, static_cast<const bfloat16*>(all.k) + kv_offset, all.kv_stride, key_begin, block.keys());
  load_rows<kRows, kHead>(v, static_cast<const bfloat16*>(all.v) + kv_offset, all.kv_stride, key_begin, block.keys());
  Step step{static_cast<int>(kv_head * group), static_cast<int>(query_begin)}, next = step;
  if (query_begin < queries_end()) {
    load_queries(step);
    keep_statistics(step);
  }
  ptx::copy_async_commit();
  const float scale = all.scale * kLog2E;
  float dk[kTiles][kHead / 8][4] = {}, dv[kTiles][kHead / 8][4] = {};
  for (; step.head < heads_end && step.begin < queries_end(); step = next) {
    await_stage();
    advance(next);
    if (next.head < heads_end) load_queries(next);
    ptx::copy_async_commit();
    const Tile q = queries_at(step.stage), d = gradients_at(step.stage);
    // The distance from the first query to the warp's first key. If all queries see all keys, it is small enough to
    // hide none.
    const int ahead = block.causal() ? static_cast<int>(key_begin) - step.begin + of_warp : -16 * kTiles;
    // The first query of a step hides the fewest keys, and the last one the most.
    const int first_key_of_warp = static_cast<int>(key_begin) + of_warp, of_step = step.stage * kQueries;
    const bool any = !Masks::kHides || hidden[of_step] < first_key_of_warp + 16 * kTiles;
    if (ahead < kQueries && any) {
      float weights[kTiles][kQueries / 8][4] = {}, slopes[kTiles][kQueries / 8][4] = {};
      multiply_rows<kQueries, kHead>(weights, k, of_warp, q);
      multiply_rows<kQueries, kHead>(slopes, v, of_warp, d);
      if (ahead > -16 * kTiles || (Masks::kHides && hidden[of_step + kQueries - 1] > first_key_of_warp)) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
#pragma unroll
          for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int row_of_key = 16 * t + row + 8 * (i / 2), query = 8 * j + column + i % 2;
              if (ahead + 16 * t + row + 8 * (i / 2) > query ||
                  (Masks::kHides && first_key_of_warp + row_of_key < hidden[of_step + query]))
                weights[t][j][i] = -kInfinity, slopes[t][j][i] = 0.0f;
            }
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j) {
          float factors[4] = {1.0f, 1.0f, 1.0f, 1.0f};
          if constexpr (Masks::kDrops)
            factors_of_columns(factors, masks.dropout, masks.dropout.of(blockIdx.z, step.head),
                               block.first_query() + step.begin + 8 * j,
                               block.first_key() + key_begin + of_warp + 16 * t);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int query = step.stage * kQueries + 8 * j + column + i % 2;
            weights[t][j][i] = ptx::exp2_approx(weights[t][j][i] * scale - lses[query]);
            if constexpr (Masks::kDrops) slopes[t][j][i] *= factors[i];
            slopes[t][j][i] = weights[t][j][i] * (slopes[t][j][i] - deltas[query]);
            if constexpr (Masks::kDrops) weights[t][j][i] *= factors[i];
          }
        }
      multiply_weights<kQueries, kHead>(dv, weights, d);
      multiply_weights<kQueries, kHead>(dk, slopes, q);
    }
    if (next.head < heads_end) keep_statistics(next);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int64_t first = key_begin + of_warp + 16 * t;
    if constexpr (kWhole) {
      const int64_t offset = first_key * all.dkv_stride + kv_head * kHead;
      store_rows<kHead>(static_cast<bfloat16*>(all.dk) + offset, all.dkv_stride, first, block.keys(), dk[t],
                        {all.scale, all.scale});
      store_rows<kHead>(static_cast<bfloat16*>(all.dv) + offset, all.dkv_stride, first, block.keys(), dv[t],
                        {1.0f, 1.0f});
    } else {
      const int64_t width = all.kv_heads * kHead;
      float* const to = args.dkv + first_key * 2 * width + kv_head * kHead;
      store_sums<kHead>(to, 2 * width, first, block.keys(), dk[t], all.scale);
      store_sums<kHead>(to + width, 2 * width, first, block.keys(), dv[t], 1.0f);
    }
  }
}

}  // namespace

bool attention_backward_mma(LaunchContext& context, const AttentionBlockBackward& args, const float* delta) {
  const AttentionBackward& all = args.all;
  if (!fits(args) || all.dq_stride % 8 != 0 || !all_aligned(all.dout, all.dq)) return false;
  const bool whole = args.dkv == nullptr;
  if (whole ? all.dkv_stride % 8 != 0 || !all_aligned(all.dk, all.dv) : !all_aligned(args.dq_sum, args.dkv))
    return false;
  for_head(all.head_dim, [&](auto head) {
    for_flag(whole, [&](auto is_whole) {
      for_masks(args, [&](const auto& masks) {
        using Masks = std::decay_t<decltype(masks)>;
        constexpr int kHead = head.value;
        constexpr bool kWhole = is_whole.value;
        // For wide heads, dk and dv of two tiles need all registers of a thread, and dropout needs some.
        constexpr int kKeyTiles = kHead == 64 && !Masks::kDrops ? 2 : 1, kQueries = 32;
        if (args.block.keys > 0)
          launch(stream_of(context), key_kernel<kHead, kKeyTiles, kQueries, kWhole, Masks>,
                 grid_of<kKeyTiles>(args.block.keys, all.kv_heads, all.batch), dim3(kThreads),
                 bytes_of_rows(2 * 16 * kKeyTiles * kWarps + 4 * kQueries, kHead) + size_t{16} * kQueries +
                     bytes_of_hidden<Masks>(2 * kQueries),
                 args, delta, masks);
        constexpr int kTiles = kHead == 64 ? 2 : 1, kKeys = 32, kRows = 16 * kTiles * kWarps;
        launch(stream_of(context), query_kernel<kHead, kTiles, kKeys, kWhole, Masks>,
               grid_of<kTiles>(args.block.queries, all.heads, all.batch), dim3(kThreads),
               bytes_of_rows(2 * kRows + 4 * kKeys, kHead) + bytes_of_hidden<Masks>(kRows), args, delta, masks);
      });
    });
  });
  return true;
}

}  // namespace slipstream::kernels
