// SPDX-License-Identifier: Apache-2.0
// Attention forward for sm_90a: TMA loads, products of warpgroups from shared memory, softmax in registers.
//
// A thread block stays on its multiprocessor and takes one block of queries after another from a counter, so that a
// multiprocessor that another kernel occupies costs only its own share. One warp loads queries, keys and values into
// rings of stages, one warp stores results, and two or three warpgroups compute 64 queries each. A warpgroup issues the
// scores of a step before the weighted values of the step before it, so that the softmax runs beside a product. Queries
// are cut into blocks from the last one on: the block that is not whole is the first, with the fewest keys.
//
// With masks (hopper_masks.cuh) a block of queries begins with the first key that its first query sees, and so does
// each warpgroup. Steps at the edge of a window or a document have the code of those on the diagonal.
//
// Source: Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608 (overlap within a warpgroup).

#include <algorithm>
#include <type_traits>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/block.cuh"
#include "kernels/attention/hopper_masks.cuh"
#include "kernels/attention/hopper_rows.cuh"
#include "kernels/cuda/workspace.h"

namespace slipstream::kernels {
namespace {

using namespace hopper;

constexpr int kTurns = 2;  // blocks of queries in shared memory

/// Sizes for a head.
template <int kHead, typename Kind>
struct Sizes {
  // Warpgroups that compute: as the 64K registers allow. A thread needs more than 160 of them with masks.
  static constexpr int kGroups = kHead == 64 && !Kind::kHides ? 3 : 2;
  static constexpr int kRows = 64 * kGroups, kKeys = 128, kStages = kHead == 64 ? 4 : 2;
  static constexpr int kThreads = kGroupThreads * (1 + kGroups);
  static constexpr int kRegisters = kGroups == 3 ? 160 : 232, kFewRegisters = kGroups == 3 ? 32 : 40;
  static constexpr int kAllRegisters = kGroups * kRegisters + kFewRegisters;
  static_assert(kAllRegisters <= (1 + kGroups) * registers_at_launch(kThreads));
  using Queries = HeadTile<kRows, kHead>;
  using Keys = HeadTile<kKeys, kHead>;
  static constexpr int kBarriersAt = 2 * Queries::kBytes + 2 * kStages * Keys::kBytes;
  static constexpr int kItemsAt = kBarriersAt + 8 * (3 * 2 + 4 * kStages);
  static constexpr int kBytes = kItemsAt + 2 * 4;
};

/// Shared memory of a thread block. A result replaces the queries that it belongs to.
template <int kHead, typename Kind>
struct Memory : Sizes<kHead, Kind> {
  using S = Sizes<kHead, Kind>;
  using KeyUse = Use<S::kStages>;  // of a stage of keys and of one of values
  unsigned char* bytes;

  __device__ __forceinline__ explicit Memory(unsigned char* shared) : bytes(shared) {}
  __device__ __forceinline__ typename S::Queries queries(int turn) const { return {bytes + turn * S::Queries::kBytes}; }
  __device__ __forceinline__ typename S::Keys keys(int stage) const {
    return {bytes + 2 * S::Queries::kBytes + stage * S::Keys::kBytes};
  }
  __device__ __forceinline__ typename S::Keys values(int stage) const { return keys(S::kStages + stage); }

  /// The number of the block of queries of each turn.
  __device__ __forceinline__ Shared<int> items() const { return {bytes + S::kItemsAt, 2}; }

  __device__ __forceinline__ Barrier* barriers(int i) const {
    return reinterpret_cast<Barrier*>(bytes + S::kBarriersAt) + i;
  }
  __device__ __forceinline__ Barrier* queries_full(int turn) const { return barriers(turn); }
  __device__ __forceinline__ Barrier* result_full(int turn) const { return barriers(2 + turn); }
  __device__ __forceinline__ Barrier* queries_free(int turn) const { return barriers(4 + turn); }
  __device__ __forceinline__ Barrier* keys_full(int stage) const { return barriers(6 + stage); }
  __device__ __forceinline__ Barrier* values_full(int stage) const { return barriers(6 + S::kStages + stage); }
  __device__ __forceinline__ Barrier* keys_free(int stage) const { return barriers(6 + 2 * S::kStages + stage); }
  __device__ __forceinline__ Barrier* values_free(int stage) const { return barriers(6 + 3 * S::kStages + stage); }

  __device__ __forceinline__ void await_keys(const KeyUse& use) const {
    barrier_wait(keys_full(use.stage), use.parity);
  }
  __device__ __forceinline__ void await_values(const KeyUse& use) const {
    barrier_wait(values_full(use.stage), use.parity);
  }
  __device__ __forceinline__ void free_keys(const KeyUse& use) const {
    if (lane_of() == 0) barrier_arrive(keys_free(use.stage));
  }
  __device__ __forceinline__ void free_values(const KeyUse& use) const {
    if (lane_of() == 0) barrier_arrive(values_free(use.stage));
  }
};

struct Maps {
  TensorMap q, k, v, out;
  TensorMap first_out;  // of the rows of the first block alone, which may have fewer than a tile
};

/// The blocks of queries, in the order in which thread blocks take them: some heads at a time, so that the L2 cache has
/// their keys and values, and of these heads the longest blocks first.
struct Order {
  int heads, blocks, together;  // heads of all sequences; blocks of a head; heads at a time
  uint32_t* taken;              // blocks of queries taken so far
};

struct Item {
  int head, begin, end;  // of the heads of all sequences; the rows
};

/// The block of queries with this number; false after the last one.
template <int kRows>
__device__ __forceinline__ bool item_of(Item& item, const Order& order, int number, int queries) {
  if (number >= order.heads * order.blocks) return false;
  const int first = number / (order.together * order.blocks) * order.together;
  const int together = min(order.together, order.heads - first), rest = number - first * order.blocks;
  const int end = queries - kRows * (rest / together);
  item = {first + rest % together, max(0, end - kRows), end};
  return true;
}

/// Steps through the keys for queries before `end`.
template <int kKeys, typename Block>
__device__ __forceinline__ int steps_of(const Block& block, int end) {
  return (static_cast<int>(block.seen_by(0, end)) + kKeys - 1) / kKeys;
}

/// The first step with a key that queries from `begin` on see; `steps` if there is none.
template <int kKeys, typename Kind>
__device__ __forceinline__ int first_step(const Kind& masks, int sequence, int begin, int steps) {
  if constexpr (Kind::kHides)
    return min(first_key(masks, sequence, begin) / kKeys, steps);
  else
    return 0;
}

/// Takes blocks of queries and loads them, and the keys and values that they see: one lane.
template <int kHead, bool kWhole, typename Kind>
__device__ __forceinline__ void load(const AttentionBlockForward& args, const Maps& maps, const Order& order,
                                     const Kind& masks, const Memory<kHead, Kind>& memory) {
  using S = Sizes<kHead, Kind>;
  constexpr int kKeys = S::kKeys;
  const AttentionForward& all = args.all;
  const Block<kWhole, const AttentionBlockForward&> block{args};
  const int queries = static_cast<int>(block.queries()), heads = static_cast<int>(all.heads);
  const Shared<int> items = memory.items();
  Item item{};
  for (int round = 0, used = 0;; ++round) {
    const Use<kTurns> turn(round);
    const int number = static_cast<int>(atomicAdd(order.taken, 1u));
    const bool more = item_of<S::kRows>(item, order, number, queries);
    barrier_wait(memory.queries_free(turn.stage), turn.parity ^ 1);
    items[turn.stage] = number;
    if (!more) {
      barrier_arrive(memory.queries_full(turn.stage));
      return;
    }
    const int head = item.head % heads, sequence = item.head / heads;
    const int kv_head = head / (heads / static_cast<int>(all.kv_heads));
    barrier_arrive_expect(memory.queries_full(turn.stage), S::Queries::kBytes);
    memory.queries(turn.stage).load(maps.q, memory.queries_full(turn.stage), head, item.begin, sequence);
    const int steps = steps_of<kKeys>(block, item.end), first = first_step<kKeys>(masks, sequence, item.begin, steps);
    // In the order of their use: the scores of a step come before the values of the step before it.
#pragma unroll 1
    for (int step = first; step <= steps; ++step) {
      const Use<S::kStages> keys(used + step - first), values(used + step - first - 1);
      if (step < steps) {
        barrier_wait(memory.keys_free(keys.stage), keys.parity ^ 1);
        barrier_arrive_expect(memory.keys_full(keys.stage), S::Keys::kBytes);
        memory.keys(keys.stage).load(maps.k, memory.keys_full(keys.stage), kv_head, step * kKeys, sequence);
      }
      if (step > first) {
        barrier_wait(memory.values_free(values.stage), values.parity ^ 1);
        barrier_arrive_expect(memory.values_full(values.stage), S::Keys::kBytes);
        memory.values(values.stage)
            .load(maps.v, memory.values_full(values.stage), kv_head, (step - 1) * kKeys, sequence);
      }
    }
    used += steps - first;
  }
}

/// Stores the result of each block of queries when all warpgroups have written it: one lane.
template <int kHead, bool kWhole, typename Kind>
__device__ __forceinline__ void store(const AttentionBlockForward& args, const Maps& maps, const Order& order,
                                      const Memory<kHead, Kind>& memory) {
  using S = Sizes<kHead, Kind>;
  const AttentionForward& all = args.all;
  const Block<kWhole, const AttentionBlockForward&> block{args};
  const int queries = static_cast<int>(block.queries()), heads = static_cast<int>(all.heads);
  const Shared<int> items = memory.items();
  Item item{};
  for (int round = 0;; ++round) {
    const Use<kTurns> turn(round);
    barrier_wait(memory.queries_full(turn.stage), turn.parity);
    if (!item_of<S::kRows>(item, order, items[turn.stage], queries)) return;
    barrier_wait(memory.result_full(turn.stage), turn.parity);
    if (block.last()) {
      memory.queries(turn.stage)
          .store(item.begin == 0 ? maps.first_out : maps.out, item.head % heads, item.begin, item.head / heads);
      tma_store_commit();
      tma_store_wait_read<0>();
    }
    barrier_arrive(memory.queries_free(turn.stage));
  }
}

/// The steps of a warpgroup through the keys that its part of a block of queries sees.
struct Steps {
  int base;        // uses of stages before step 0
  int begin, end;  // of the warpgroup
  int first;       // the warp's first row
  int whole;       // the end of the steps all of whose keys the warpgroup's first row, and so every row, sees
  int hiding;      // with hidden keys, the end of the steps with some
  int oldest[2];   // and the first keys that the lane's rows see
};

/// Adds the weighted values of at least one step to `out`. `q`: the queries in shared memory.
template <int kHead, bool kWhole, typename Kind, typename Dropout>
__device__ __forceinline__ void attend(Accumulator<kHead>& out, float (&largest)[2], float (&sum)[2],
                                       const AttentionBlockForward& args, const Kind& masks,
                                       const Memory<kHead, Kind>& memory, Steps steps, uint64_t q,
                                       [[maybe_unused]] const Dropout& dropout) {
  using S = Sizes<kHead, Kind>;
  using KeyUse = Use<S::kStages>;
  constexpr int kKeys = S::kKeys;
  const Block<kWhole, const AttentionBlockForward&> block{args};
  const float scale = args.all.scale * kLog2E;
  Accumulator<kKeys> scores;
  uint32_t weights[kKeys / 16][4];
  float keep[2];
  [[maybe_unused]] Kept<kKeys> kept;  // which weights dropout keeps
  const auto issue_scores = [&](int step) {
    wgmma_fence(scores);
    multiply_rows<typename S::Queries, typename S::Keys, kHead>(
        scores, q, memory.keys(KeyUse(steps.base + step).stage).over_columns());
    wgmma_commit();
  };
  // The fence must follow the wait for values: otherwise the compiler adds one in the branch of that wait, and
  // completes all products before it.
  const auto issue_sums = [&](const KeyUse& use) {
    memory.await_values(use);
    wgmma_fence(out, weights);
    multiply_weights<typename S::Keys>(out, weights, memory.values(use.stage).over_rows());
    wgmma_commit();
  };
  const auto draw = [&](int step) {
    if constexpr (Kind::kDrops) kept = kept_keys<kKeys>(masks, dropout, steps.first, step * kKeys);
  };
  // Turns the scores of a step into weights; kMasked: some row of the warpgroup does not see all its keys.
  const auto weigh = [&]<bool kMasked>(std::bool_constant<kMasked>, int step) {
    if constexpr (kMasked) {
      // The last key that the warp's first row sees.
      const int last = (block.causal() ? steps.first : static_cast<int>(block.keys()) - 1) - step * kKeys;
      hide_after<kKeys>(scores, last, block.causal());
      if constexpr (Kind::kHides) hide_before<kKeys>(scores, steps.oldest, step * kKeys);
    }
    // In the first steps a row may see no key.
    softmax<kKeys, Kind::kHides && kMasked>(scores, largest, sum, keep, scale);
  };
  const auto prepare_sums = [&] {
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) out[i] *= keep[i / 2 % 2];
    if constexpr (Kind::kDrops) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) scores[i] = kept[i] ? masks.dropout.scale * scores[i] : 0.0f;
    }
    pack<kKeys>(weights, scores);
  };
  // The first step, which may have hidden keys at both ends.
  const KeyUse start(steps.base + steps.begin);
  memory.await_keys(start);
  issue_scores(steps.begin);
  draw(steps.begin);
  wgmma_wait<0>(scores);
  memory.free_keys(start);
  if (steps.begin + 1 < steps.end) memory.await_keys(KeyUse(steps.base + steps.begin + 1));
  weigh(std::true_type{}, steps.begin);
  prepare_sums();
  // Keys of the step have arrived: the wait for those of the next one stands between the softmax and the wait for its
  // product, since ptxas moves a wait for products to the beginning of its basic block.
  const auto turn = [&](auto masked, int step) {
    const KeyUse before(steps.base + step - 1);
    issue_scores(step);
    issue_sums(before);
    draw(step);
    wgmma_wait<1>(scores);
    memory.free_keys(KeyUse(steps.base + step));
    weigh(masked, step);
    wgmma_pin(scores);
    if (step + 1 < steps.end) memory.await_keys(KeyUse(steps.base + step + 1));
    wgmma_wait<0>(out);
    memory.free_values(before);
    prepare_sums();
  };
  int step = steps.begin + 1;
  if constexpr (Kind::kHides) {
    for (; step < steps.end; ++step)
      if (step < steps.hiding || step >= steps.whole)
        turn(std::true_type{}, step);
      else
        turn(std::false_type{}, step);
  } else {
    for (; step < steps.whole; ++step) turn(std::false_type{}, step);
    for (; step < steps.end; ++step) turn(std::true_type{}, step);
  }
  const KeyUse last(steps.base + steps.end - 1);
  issue_sums(last);
  wgmma_wait<0>(out);
  memory.free_values(last);
}

/// Frees the keys of steps that only other warpgroups see. A lane that waited here after lane 0's arrival could miss
/// the phase.
template <int kHead, typename Kind>
__device__ __forceinline__ void skip(const Memory<kHead, Kind>& memory, int base, int begin, int end) {
  for (int step = begin; step < end && lane_of() == 0; ++step) {
    const Use<Sizes<kHead, Kind>::kStages> unseen(base + step);
    memory.await_keys(unseen), memory.free_keys(unseen);
    memory.await_values(unseen), memory.free_values(unseen);
  }
}

/// The products and the softmax: a warpgroup with 64 queries of each block.
template <int kHead, bool kWhole, typename Kind>
__device__ __forceinline__ void compute(const AttentionBlockForward& args, const Order& order, const Kind& masks,
                                        const Memory<kHead, Kind>& memory, int warp) {
  using S = Sizes<kHead, Kind>;
  constexpr int kKeys = S::kKeys;
  const AttentionForward& all = args.all;
  const Block<kWhole, const AttentionBlockForward&> block{args};
  const int queries = static_cast<int>(block.queries()), heads = static_cast<int>(all.heads);
  const Shared<int> items = memory.items();
  Item item{};
  const int group = warp / 4 - 1, row = lane_of() / 4, of_warp = 16 * (warp - 4);
  for (int round = 0, used = 0;; ++round) {
    const Use<kTurns> turn(round);
    barrier_wait(memory.queries_full(turn.stage), turn.parity);
    if (!item_of<S::kRows>(item, order, uniform(items[turn.stage]), queries)) return;
    [[maybe_unused]] int sequence = 0;
    int item_first = 0;  // the first step of the block of queries
    if constexpr (Kind::kHides) {
      sequence = item.head / heads;
      item_first = uniform(first_step<kKeys>(masks, sequence, item.begin, steps_of<kKeys>(block, item.end)));
    }
    const int of_group = item.begin + 64 * group, group_end = min(of_group + 64, item.end);
    Steps steps{};
    steps.base = uniform(used - item_first);
    steps.first = uniform(item.begin + of_warp);
    steps.end = uniform(of_group < item.end ? steps_of<kKeys>(block, group_end) : item_first);
    const auto head_begin = [&] { return item.head * all.tokens + block.first_query(); };  // in [B, H, T]
    Accumulator<kHead> out;
    float largest[2] = {-kInfinity, -kInfinity}, sum[2] = {};
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) out[i] = 0.0f;
    if (!block.first()) load_carried<kHead>(out, largest, sum, args, head_begin(), steps.first, item.end);
    if constexpr (Kind::kHides) {
      for (int half = 0; half < 2; ++half)
        steps.oldest[half] = first_key(masks, sequence, steps.first + 8 * half + row);
      steps.begin = uniform(first_step<kKeys>(masks, sequence, of_group, steps.end));
      skip(memory, steps.base, item_first, steps.begin);
      // The other lanes wait for lane 0 here.
      steps.hiding = uniform((first_key(masks, sequence, group_end - 1) + kKeys - 1) / kKeys);
    }
    if (steps.begin < steps.end) {
      steps.whole =
          uniform(min(steps.end, block.causal() ? (of_group + 1) / kKeys : static_cast<int>(block.keys()) / kKeys));
      attend<kHead, kWhole>(out, largest, sum, args, masks, memory, steps,
                            memory.queries(turn.stage).over_columns(64 * group),
                            dropout_of(masks, sequence, item.head % heads));
    }
    const int all_steps = steps_of<kKeys>(block, item.end);
    skip(memory, steps.base, steps.end, all_steps);
    used = steps.base + all_steps;
    ptx::make_again(item.head);  // else rows of the head and places of words occupy registers in the loops
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half] = across_row<false>(sum[half]);
    store_rows(largest, sum, args, !block.last(), head_begin(), steps.first, item.end);
    if (block.last())
      round_result<kHead>(memory.queries(turn.stage), out, sum, of_warp + row);
    else
      store_sums<kHead>(args.carried.out + head_begin() * kHead, steps.first, item.end, out);
    barrier_arrive(memory.result_full(turn.stage));
  }
}

template <int kHead, bool kWhole, typename Kind>
__global__ void __launch_bounds__(Sizes<kHead, Kind>::kThreads, 1)
    hopper_forward_kernel(const __grid_constant__ AttentionBlockForward args, const __grid_constant__ Maps maps,
                          const __grid_constant__ Order order, const __grid_constant__ Kind masks) {
  SLIP_DYNAMIC_SHARED_1024(bytes);
  using S = Sizes<kHead, Kind>;
  const Memory<kHead, Kind> memory(bytes);
  const int warp = uniform(static_cast<int>(threadIdx.x) / kWarp), lane = lane_of();
  if (threadIdx.x == 0) {
    for (int turn = 0; turn < kTurns; ++turn) {
      barrier_init(memory.queries_full(turn), 1);
      barrier_init(memory.result_full(turn), kGroupThreads * S::kGroups);
      barrier_init(memory.queries_free(turn), 1);
    }
    for (int stage = 0; stage < S::kStages; ++stage) {
      barrier_init(memory.keys_full(stage), 1);
      barrier_init(memory.values_full(stage), 1);
      barrier_init(memory.keys_free(stage), 4 * S::kGroups);
      barrier_init(memory.values_free(stage), 4 * S::kGroups);
    }
    barrier_init_fence();
  }
  __syncthreads();
  ptx::after_earlier_kernels();
  if (warp < 4) {
    registers_lower<S::kFewRegisters>();
    if (warp == 0 && lane == 0)
      load<kHead, kWhole>(args, maps, order, masks, memory);
    else if (warp == 1 && lane == 0)
      store<kHead, kWhole>(args, maps, order, memory);
  } else {
    registers_raise<S::kRegisters>();
    compute<kHead, kWhole>(args, order, masks, memory, warp);
  }
}

/// Keys and values of the heads that are computed at a time: most of the 50 MB L2 cache of an H100.
constexpr int64_t kCacheBytes = int64_t{40} << 20;

template <int kHead, bool kWhole, typename Kind>
void launch_forward(LaunchContext& context, const AttentionBlockForward& args, const Maps& maps, const Kind& masks) {
  using S = Sizes<kHead, Kind>;
  const AttentionForward& all = args.all;
  const int64_t heads = all.batch * all.heads, blocks = blocks_for(args.block.queries, S::kRows);
  const int64_t grid = std::min<int64_t>(multiprocessors(), heads * blocks);
  const int64_t fit = kCacheBytes / (4 * args.block.keys * kHead) * (all.heads / all.kv_heads);
  const int64_t together = std::clamp<int64_t>(fit, 1, grid);
  require_registers("attention forward", S::kThreads,
                    registers_of(hopper_forward_kernel<kHead, kWhole, Kind>, S::kThreads), S::kAllRegisters);
  auto* const taken = static_cast<uint32_t*>(scratch_of(context));
  cuda_check(cudaMemsetAsync(taken, 0, sizeof *taken, stream_of(context)), "zeroing the counter of attention");
  const Order order{static_cast<int>(heads), static_cast<int>(blocks), static_cast<int>(together), taken};
  launch(stream_of(context), hopper_forward_kernel<kHead, kWhole, Kind>, dim3(static_cast<unsigned>(grid)),
         dim3(S::kThreads), S::kBytes, args, maps, order, masks);
}

/// The maps of a block, of its rows alone: rows of other blocks are zeros, and are not written.
template <int kHead, typename Kind>
bool make_maps(Maps& maps, const AttentionBlockForward& args, std::string& reason) {
  using S = Sizes<kHead, Kind>;
  const AttentionForward& all = args.all;
  const auto map = [&](TensorMap& to, const char* name, const void* from, int64_t heads, int64_t first, int64_t rows,
                       int64_t stride, int box_rows) {
    const HeadRows head_rows = {.base = static_cast<const bfloat16*>(from) + first * stride,
                                .head_dim = kHead,
                                .heads = heads,
                                .rows = rows,
                                .sequences = all.batch,
                                .stride = stride,
                                .sequence_stride = all.tokens * stride};
    if (make_head_map(to, head_rows, box_rows, reason)) return true;
    reason = std::string(name) + ": " + reason;
    return false;
  };
  const AttentionBlock& block = args.block;
  const int64_t first_rows = (block.queries - 1) % S::kRows + 1;
  return map(maps.q, "q", all.q, all.heads, block.first_query, block.queries, all.q_stride, S::kRows) &&
         map(maps.k, "k", all.k, all.kv_heads, block.first_key, block.keys, all.kv_stride, S::kKeys) &&
         map(maps.v, "v", all.v, all.kv_heads, block.first_key, block.keys, all.kv_stride, S::kKeys) &&
         (!args.last ||
          (map(maps.out, "out", all.out, all.heads, block.first_query, block.queries, all.out_stride, S::kRows) &&
           map(maps.first_out, "out", all.out, all.heads, block.first_query, first_rows, all.out_stride, S::kRows)));
}

}  // namespace

bool attention_forward_hopper(LaunchContext& context, const AttentionBlockForward& args) {
  const AttentionForward& all = args.all;
  // A block without keys only writes what is carried.
  if (compute_capability() / 10 != 9 || all.dtype != DType::bf16 || args.block.keys == 0) return false;
  std::string reason = hopper_refusal(all.head_dim);
  if (reason.empty()) reason = masks_refusal(args);
  const bool whole = args.first && args.last && args.block == AttentionBlock{0, all.tokens, 0, all.tokens, true};
  const auto run = [&](auto head) {
    Maps maps{};
    bool fits = false;
    for_masks(args, [&]<typename Kind>(const Kind& masks) {
      fits = make_maps<head.value, Kind>(maps, args, reason);
      if (!fits) return;
      if constexpr (Kind::kHides)
        launch_forward<head.value, false>(context, args, maps, masks);
      else
        for_flag(whole, [&](auto is_whole) { launch_forward<head.value, is_whole.value>(context, args, maps, masks); });
    });
    return fits;
  };
  if (reason.empty() && !all_aligned(args.carried.out)) reason = "the carried sums are not aligned to 16 bytes";
  if (reason.empty() &&
      (all.head_dim == 64 ? run(std::integral_constant<int, 64>{}) : run(std::integral_constant<int, 128>{})))
    return true;
  note_attention_fallback("attention_forward: " + reason);
  return false;
}

}  // namespace slipstream::kernels
