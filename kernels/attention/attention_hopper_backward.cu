// SPDX-License-Identifier: Apache-2.0
// Attention backward for sm_90a computes five products together: scores, their gradients, dv, dk and dq of a tile.
//
// A thread block stays on its multiprocessor and takes one block of 128 keys after another. It passes through the
// queries that see them, 64 at a time, or 128 in heads of 64 (attention_path.h). Scores are transposed, with the 64
// keys of a warpgroup down and the queries across, so that weights and slopes (the gradients of scores) are the left
// sides of dv and dk in registers. Both warpgroups write slopes to shared memory. For dq, each multiplies them with
// half of the columns of the keys.
//
// Every block of keys adds to dq of its queries in a fixed order, from the first block that the queries see to the last
// one, which also rounds the sum. The bits therefore do not depend on the schedule. Blocks of keys are taken in the
// same order, so that a thread block waits only for blocks of keys that are already taken. Most queries see the first
// blocks, so the long work comes first. A block passes through its queries from the last one down. Neighbours that
// begin together thus stay one step apart, and in causal attention a block ends with the queries on the diagonal, whose
// sums it rounds.
//
// With masks (hopper_masks.cuh), a block of keys begins with the last query that sees its last key, and the sum of a
// tile of queries begins with the first key that its first query sees. The blocks that add to a tile still follow one
// another.
//
// One warp loads, one lane keeps the order of the additions, and two warpgroups compute.
// Source: Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608.

#include <algorithm>
#include <string>
#include <type_traits>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_path.h"
#include "kernels/attention/block.cuh"
#include "kernels/attention/hopper_backward_sums.cuh"
#include "kernels/cuda/workspace.h"

namespace slipstream::kernels {
namespace {

using namespace hopper;

/// Takes blocks of keys, and loads them and the queries that see them. One warp runs this.
template <typename M, typename Args>
__device__ __forceinline__ void load(const Args& args, const M& memory) {
  constexpr int kQueries = M::kQueries;
  const AttentionBlockBackward& of = args.of;
  const int lane = lane_of();
  const Shared<float> lses = memory.lses(), deltas = memory.deltas();
  Ring<kStages> ring;
  for (Ring<1> turn;; turn.advance()) {
    int number = 0;
    if (lane == 0) number = static_cast<int>(atomicAdd(args.exchange.taken, 1u));
    number = __shfl_sync(kWholeWarp, number, 0);
    Item item{};
    const bool more = item_of(item, args, number);
    barrier_wait(memory.keys_free(), turn.parity ^ 1);
    if (lane == 0) {
      memory.item()[0] = number;
      if (more) {
        barrier_arrive_expect(memory.keys_full(), M::Keys::kBytes + M::Values::kBytes);
        memory.keys().load(args.maps.k, memory.keys_full(), item.kv_head, item.key_block * kKeys, item.sequence);
        memory.values().load(args.maps.v, memory.keys_full(), item.kv_head, item.key_block * kKeys, item.sequence);
      } else {
        barrier_arrive(memory.keys_full());
      }
    }
    if (!more) return;
    Step step = first_step(args, item);
    for (int count = steps_of(args, item); count > 0; --count, advance(step, item), ring.advance()) {
      const int64_t head = head_of(args, item, step) * of.all.tokens + of.block.first_query;
      barrier_wait(memory.free(ring.stage), ring.parity ^ 1);
      if (lane == 0) {
        Barrier* const full = memory.full(ring.stage);
        barrier_arrive_expect(full, 2 * M::Queries::kBytes);
        memory.queries(ring.stage).load(args.maps.q, full, step.head, step.tile * kQueries, item.sequence);
        memory.gradients(ring.stage).load(args.maps.dout, full, step.head, step.tile * kQueries, item.sequence);
      }
#pragma unroll
      for (int i = lane; i < kQueries; i += kWarp) {
        const int query = step.tile * kQueries + i;
        const bool valid = query < of.block.queries;
        lses[ring.stage * kQueries + i] = valid ? of.all.lse[head + query] * kLog2E : kInfinity;
        deltas[ring.stage * kQueries + i] = valid ? args.exchange.delta[head + query] : 0.0f;
      }
      barrier_arrive(memory.full(ring.stage));
    }
  }
}

/// Lets the warpgroups add to dq of a tile when all earlier blocks of keys have added to it. One lane runs this.
template <typename M, typename Args>
__device__ __forceinline__ void keep_order(const Args& args, const M& memory) {
  Ring<1> additions;
  for (Ring<1> turn;; turn.advance()) {
    barrier_wait(memory.keys_full(), turn.parity);
    Item item{};
    if (!item_of(item, args, memory.item()[0])) return;
    barrier_arrive(memory.keys_free());
    Step step = first_step(args, item);
    for (int count = steps_of(args, item); count > 0; --count, advance(step, item), additions.advance()) {
      uint32_t* const of_tile = args.exchange.additions + head_of(args, item, step) * args.exchange.tiles + step.tile;
      const int earlier = earlier_blocks(args, item, step);
      if (earlier > 0) ptx::wait_until(of_tile, static_cast<uint32_t>(earlier));
      memory.additions()[0] = earlier;
      barrier_arrive(memory.may_add());
      barrier_wait(memory.added(), additions.parity);
      if (item.key_block < last_block(args, step.tile)) ptx::store_release(of_tile, static_cast<uint32_t>(earlier) + 1);
    }
  }
}

/// The products of a warpgroup with 64 keys. In narrow heads, dk and dq of a step of 64 queries are computed while the
/// weights of the next step are; wide heads and steps of 128 queries have no registers for that.
template <int kHead, typename M, typename Args>
__device__ __forceinline__ void compute(const Args& args, const M& memory) {
  using Kind = typename Args::Kind;
  constexpr int kQueries = M::kQueries, kParts = kQueries / 64;  // parts of 64 queries
  const AttentionBlockBackward& of = args.of;
  const int thread = static_cast<int>(threadIdx.x), lane = lane_of(), row = lane / 4, column = 2 * (lane % 4);
  const int group = __shfl_sync(kWholeWarp, thread / kGroupThreads - 1, 0),
            warp = __shfl_sync(kWholeWarp, thread / kWarp % 4, 0), of_warp = 64 * group + 16 * warp;
  const float scale = of.all.scale * kLog2E;
  const Shared<float> lses = memory.lses(), deltas = memory.deltas();
  const uint64_t k = memory.keys().over_columns(64 * group), v = memory.values().over_columns(64 * group),
                 k_half = memory.keys().over_rows(group);
  Ring<kStages> ring;
  Ring<2> exchange;
  Ring<1> addition;
  for (Ring<1> turn;; turn.advance()) {
    barrier_wait(memory.keys_full(), turn.parity);
    Item item{};
    if (!item_of(item, args, memory.item()[0])) return;
    const int first_key = item.key_block * kKeys + of_warp;
    Step step = first_step(args, item);
    int hidden[2] = {};            // the queries of the tile before this one that do not see the lane's two keys
    [[maybe_unused]] int seen[2];  // the end of the queries that see these keys
    if constexpr (Kind::kHides)
      for (int half = 0; half < 2; ++half) seen[half] = args.ends.of(item.sequence, first_key + row + 8 * half);
    Accumulator<kQueries> weights;
    Accumulator<64> slopes[kParts];
    Accumulator<kHead> dk, dv;
    Accumulator<kHead / 2> dq[kParts];
    uint32_t left_dv[kQueries / 16][4], left_dk[kParts][4][4];
    [[maybe_unused]] Kept<kQueries> kept;
    const auto dropped = [&](int i, float value) {
      if constexpr (Kind::kDrops)
        return kept[i] ? args.masks.dropout.scale * value : 0.0f;
      else
        return value;
    };
    const auto issue_scores = [&] {
      barrier_wait(memory.full(ring.stage), ring.parity);
      wgmma_fence(weights);
      multiply_rows<typename M::Keys, typename M::Queries, kHead>(weights, k,
                                                                  memory.queries(ring.stage).over_columns());
      wgmma_commit();
    };
    const auto issue_slopes = [&](int part) {
      wgmma_fence(slopes[part]);
      multiply_rows<typename M::Values, typename M::Queries, kHead>(
          slopes[part], v, memory.gradients(ring.stage).over_columns(64 * part));
      wgmma_commit();
    };
    const auto issue_dv = [&] {
      if constexpr (Kind::kDrops) {
        Accumulator<kQueries> rest;
#pragma unroll
        for (int i = 0; i < kQueries / 2; ++i) rest[i] = dropped(i, weights[i]);
        pack<kQueries>(left_dv, rest);
      } else {
        pack<kQueries>(left_dv, weights);
      }
      wgmma_fence(dv, left_dv);
      multiply_weights<typename M::Queries>(dv, left_dv, memory.gradients(ring.stage).over_rows());
      wgmma_commit();
    };
    // From the slopes of both warpgroups.
    const auto issue_dk_dq = [&](int stage) {
      wgmma_fence(dk, left_dk);
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        multiply_weights<typename M::Queries>(dk, left_dk[part],
                                              memory.queries(stage).over_rows() + M::Queries::rows_at(4 * part));
      barrier_wait(memory.slopes_full(exchange.stage), exchange.parity);
      wgmma_fence(dq);
      const uint64_t left_dq = memory.slopes(exchange.stage).over_rows();
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int keys = 0; keys < kKeys / 16; ++keys)
          wgmma<kHead / 2, Major::mn, Major::mn>(
              dq[part], left_dq + part * static_cast<uint64_t>(M::Slopes::kSlabBytes / 16) + M::Slopes::rows_at(keys),
              k_half + M::Keys::rows_at(keys), keys > 0);
      wgmma_commit();
      exchange.advance();
    };
    const auto hide = [&]<int kColumns>(Accumulator<kColumns>& of_keys, int first, float value) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i)
        if (first + 8 * (i / 4) + column + i % 2 < hidden[i / 2 % 2]) of_keys[i] = value;
    };
    const auto hide_old = [&]<int kColumns>(Accumulator<kColumns>& of_keys, int first, float value) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i)
        if (first + 8 * (i / 4) + column + i % 2 >= seen[i / 2 % 2] - step.tile * kQueries) of_keys[i] = value;
    };
    const auto draw = [&] {
      if constexpr (Kind::kDrops)
        kept = kept_queries<kQueries>(args.masks, args.masks.dropout.of(item.sequence, step.head), step.tile * kQueries,
                                      item.key_block * kKeys + of_warp);
    };
    const auto weigh = [&] {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = first_key + row + 8 * half;
        hidden[half] = of.block.causal ? key - step.tile * kQueries : key < of.block.keys ? 0 : kQueries;
      }
      if (hidden[1] > 0) hide(weights, 0, -kInfinity);
      if constexpr (Kind::kHides)
        if (seen[0] < (step.tile + 1) * kQueries) hide_old(weights, 0, -kInfinity);
#pragma unroll
      for (int j = 0; j < kQueries / 8; ++j) {
        float lse[2];
        ptx::load_pair(lses.at(ring.stage * kQueries + 8 * j + column), lse[0], lse[1]);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) weights[i] = ptx::exp2_approx(weights[i] * scale - lse[i % 2]);
      }
    };
    // The slopes of the scores, from those of the weights. Two places are enough for the exchange: a warpgroup writes
    // to one after both have written to the other, and they do so after their products with this one.
    const auto slope = [&](int place, int part) {
      Accumulator<64>& of_part = slopes[part];
      // 0 times the slope of a hidden weight may be NaN.
      if (hidden[1] > 64 * part) hide(of_part, 64 * part, 0.0f);
      if constexpr (Kind::kHides)
        if (seen[0] < (step.tile + 1) * kQueries) hide_old(of_part, 64 * part, 0.0f);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float delta[2];
        ptx::load_pair(deltas.at(ring.stage * kQueries + 64 * part + 8 * j + column), delta[0], delta[1]);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i)
          of_part[i] = weights[32 * part + i] * (dropped(32 * part + i, of_part[i]) - delta[i % 2]);
      }
      uint32_t(&left)[4][4] = left_dk[part];
      pack<64>(left, of_part);
      const Shared<uint32_t> words(memory.slopes(place).bytes, M::Slopes::kBytes / 4);
      int at = M::Slopes::word(of_warp + row, 8 * part);  // chunk 8 part + j of the row is at ^ 4 j
      if constexpr (Kind::kHides) ptx::make_again(at);    // otherwise the places of all chunks stay in registers
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) words[(at ^ 4 * j) + 8 * 32 * half] = left[j / 2][2 * (j % 2) + half];
    };
    const auto exchange_slopes = [&](int place) {
      fence_async();
      __syncwarp();
      if (lane == 0) barrier_arrive(memory.slopes_full(place));
    };
    // Ends a step whose products are complete.
    const auto finish = [&](const Step& done, int stage) {
      if (lane == 0) barrier_arrive(memory.free(stage));
      barrier_wait(memory.may_add(), addition.parity);
      const bool first = memory.additions()[0] == 0;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        add_dq<kHead>(args, item, done, done.tile * kQueries + 64 * part + 16 * warp, first, group, dq[part]);
      __syncwarp();
      if (lane == 0) barrier_arrive(memory.added());
      addition.advance();
    };
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) dk[i] = 0.0f, dv[i] = 0.0f;
    int count = steps_of(args, item);
    if (Kind::kHides && count == 0) {  // no query sees the block of keys
      __syncwarp();
      if (lane == 0) barrier_arrive(memory.keys_free());
    } else if constexpr (kHead == 64 && kQueries == 64) {
      issue_scores();
      wgmma_wait<0>(weights);
      issue_slopes(0);
      draw();
      weigh();
      issue_dv();
      wgmma_wait<1>(slopes[0]);
      slope(exchange.stage, 0);
      exchange_slopes(exchange.stage);
      while (--count > 0) {
        const Step before = step;
        const int stage = ring.stage;
        advance(step, item);
        ring.advance();
        issue_scores();
        wgmma_wait<0>(weights);
        issue_slopes(0);
        issue_dk_dq(stage);
        draw();
        weigh();
        issue_dv();
        wgmma_wait<1>(slopes[0], dq);
        finish(before, stage);
        slope(exchange.stage, 0);
        exchange_slopes(exchange.stage);
      }
      issue_dk_dq(ring.stage);
      wgmma_wait<0>(dq, dk, dv);
      if (lane == 0) barrier_arrive(memory.keys_free());
      finish(step, ring.stage);
      ring.advance();
    } else {
      for (; count > 0; --count, advance(step, item), ring.advance()) {
        draw();
        issue_scores();
        issue_slopes(0);
        wgmma_wait<1>(weights);
        weigh();
        issue_dv();
        if constexpr (kParts == 1) {
          wgmma_wait<1>(slopes[0]);
          slope(exchange.stage, 0);
        } else {
          wgmma_wait<0>(slopes[0], dv);  // the other slopes use the registers of its left side
          issue_slopes(1);
          slope(exchange.stage, 0);
          wgmma_wait<0>(slopes[1]);
          slope(exchange.stage, 1);
        }
        exchange_slopes(exchange.stage);
        issue_dk_dq(ring.stage);
        wgmma_wait<0>(dq, dk, dv);
        finish(step, ring.stage);
      }
      if (lane == 0) barrier_arrive(memory.keys_free());
    }
    store_gradients<kHead>(args, item, first_key, dk, dv);
  }
}

template <int kHead, int kQueries, typename Kind>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    hopper_backward_kernel(const __grid_constant__ Arguments<Kind, kQueries> args) {
  if constexpr (!kDeviceCode) return;
  SLIP_DYNAMIC_SHARED_1024(bytes);
  const Memory<kHead, kQueries> memory{bytes};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(memory.full(stage), 1 + kWarp);
      barrier_init(memory.free(stage), kComputingWarps);
    }
    for (int place = 0; place < 2; ++place) barrier_init(memory.slopes_full(place), kComputingWarps);
    barrier_init(memory.keys_full(), 1);
    barrier_init(memory.keys_free(), 1 + kComputingWarps);
    barrier_init(memory.may_add(), 1);
    barrier_init(memory.added(), kComputingWarps);
    barrier_init_fence();
  }
  __syncthreads();
  ptx::after_earlier_kernels();
  // This is computed again where it is used: a value that lives across the change of registers would be spilled.
  const auto warp = [] { return __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x) / kWarp, 0); };
  if (warp() < 4) {
    registers_lower<kFewRegisters>();
    if (warp() == 0) load(args, memory);
    if (warp() == 1 && lane_of() == 0) keep_order(args, memory);
  } else {
    registers_raise<kRegisters>();
    compute<kHead>(args, memory);
  }
}

/// Writes the end of the queries that see a key, with a thread for each key.
__global__ void __launch_bounds__(kEndsThreads) ends_kernel(HiddenKeys hidden, Ends ends) {
  ptx::after_earlier_kernels();
  const int key = static_cast<int>(blockIdx.x * kEndsThreads + threadIdx.x), sequence = static_cast<int>(blockIdx.y);
  if (key >= ends.keys) return;
  int low = 0,
      high = static_cast<int>(hidden.block.queries);  // queries before `low` see it unless they are before the key
  while (low < high) {
    const int query = (low + high) / 2;
    if (hidden.before(sequence, query) <= key)
      low = query + 1;
    else
      high = query;
  }
  ends.queries[sequence * ends.keys + key] = low;
}

template <int kHead, int kQueries>
bool enqueue(LaunchContext& context, const AttentionBlockBackward& of, const Exchange& exchange, const Ends& ends,
             std::string& reason) {
  Maps maps{};
  if (!make_maps<kHead, kQueries>(maps, of, reason)) return false;
  const size_t counter_bytes = 4 * (1 + static_cast<size_t>(of.all.batch * of.all.heads * exchange.tiles));
  cuda_check(cudaMemsetAsync(exchange.taken, 0, counter_bytes, stream_of(context)), "zeroing counters of attention");
  const int64_t items = of.all.batch * of.all.kv_heads * exchange.key_blocks;
  for_masks(of, [&]<typename Kind>(const Kind& masks) {
    require_registers("attention backward", kBackwardThreads,
                      registers_of(hopper_backward_kernel<kHead, kQueries, Kind>, kBackwardThreads), kAllRegisters);
    if constexpr (Kind::kHides)
      launch(stream_of(context), ends_kernel,
             dim3(static_cast<unsigned>(blocks_for(ends.keys, kEndsThreads)), static_cast<unsigned>(of.all.batch)),
             dim3(kEndsThreads), 0, masks.hidden, ends);
    launch(stream_of(context), hopper_backward_kernel<kHead, kQueries, Kind>,
           dim3(static_cast<unsigned>(std::min<int64_t>(multiprocessors(), items))), dim3(kBackwardThreads),
           Memory<kHead, kQueries>::kBytes, Arguments<Kind, kQueries>{of, exchange, maps, masks, ends});
  });
  return true;
}

}  // namespace

bool attention_backward_hopper(LaunchContext& context, const AttentionBlockBackward& args, const float* delta) {
  const AttentionBackward& all = args.all;
  const AttentionBlock& block = args.block;
  // A block without keys only rounds dq_sum.
  if (compute_capability() / 10 != 9 || all.dtype != DType::bf16 || block.keys == 0) return false;
  const int queries = all.head_dim == 64 ? attention_backward_queries() : 64;
  const int64_t heads = all.batch * all.heads, tiles = blocks_for(block.queries, queries);
  auto* const counters = static_cast<uint32_t*>(scratch_of(context));
  const int64_t counters_end = 1 + heads * tiles;
  const Exchange exchange = {.delta = delta,
                             .dq = all.workspace + attention_backward_delta_elems(all),
                             .additions = counters + 1,
                             .taken = counters,
                             .key_blocks = static_cast<int>(blocks_for(block.keys, kKeys)),
                             .tiles = static_cast<int>(tiles),
                             .together = static_cast<int>(std::clamp<int64_t>(
                                 kTogetherBytes / (4 * all.heads / all.kv_heads * block.queries * all.head_dim), 16,
                                 all.batch * all.kv_heads))};
  const Ends ends = {.queries = reinterpret_cast<int*>(counters + counters_end),
                     .keys = static_cast<int>(block.keys),
                     .tiles = exchange.tiles};
  std::string reason = hopper_refusal(all.head_dim);
  if (reason.empty()) reason = masks_refusal(args);
  if (reason.empty() && (!all_aligned(all.workspace, args.dq_sum, args.dkv, all.dq, all.dk, all.dv) ||
                         all.dq_stride % 8 != 0 || all.dkv_stride % 8 != 0))
    reason = "gradients or the workspace are not aligned to 16 bytes";
  if (reason.empty() && 4 * (counters_end + all.batch * block.keys) > kScratchBytes)
    reason = "more than 2 million tiles of 64 queries in all heads and sequences, and keys in all sequences";
  if (reason.empty() && (all.head_dim == 128 ? enqueue<128, 64>(context, args, exchange, ends, reason)
                         : queries == 128    ? enqueue<64, 128>(context, args, exchange, ends, reason)
                                             : enqueue<64, 64>(context, args, exchange, ends, reason)))
    return true;
  note_attention_fallback("attention_backward: " + reason);
  return false;
}

}  // namespace slipstream::kernels
