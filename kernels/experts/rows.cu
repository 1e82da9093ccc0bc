// SPDX-License-Identifier: Apache-2.0
// The rows in the order of experts on CUDA: a block per expert finds its choices, a thread moves 16 bytes of a row.

#include "kernels/experts/rows.cuh"

#include "kernels/cuda/common.cuh"
#include "kernels/experts/rows.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kArrangeWarps = 16;

/// Block e arranges the choices of expert first + e. Each of its warps has a segment of all choices: it counts those of
/// lower experts and its own, waits for the counts of the other warps, and writes its own after those of earlier
/// segments. Counts are whole numbers, so the result does not depend on the order of the threads.
__global__ void __launch_bounds__(kArrangeWarps* kWarp) arrange_kernel(ArrangeRows args) {
  ptx::after_earlier_kernels();
  __shared__ int32_t storage[2 * kArrangeWarps];
  const Shared<int32_t> counts(storage);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int choices = static_cast<int>(args.tokens * args.top_k), first_expert = static_cast<int>(args.first),
            last = first_expert + static_cast<int>(args.experts) - 1,
            expert = first_expert + static_cast<int>(blockIdx.x);
  const int segment = (choices + kArrangeWarps * kWarp - 1) / (kArrangeWarps * kWarp) * kWarp;
  const int begin = min(choices, warp * segment), end = min(choices, begin + segment);
  int lower = 0, mine = 0;
  for (int i = begin + lane; i < end; i += kWarp) {
    const int32_t chosen = args.chosen[i];
    lower += chosen >= first_expert && chosen < expert ? 1 : 0;
    mine += chosen == expert ? 1 : 0;
  }
  lower = warp_sum(lower), mine = warp_sum(mine);
  if (lane == 0) counts[warp] = lower, counts[kArrangeWarps + warp] = mine;
  __syncthreads();
  int first = 0, position = 0, all = 0;
  for (int w = 0; w < kArrangeWarps; ++w) {
    const int of_warp = counts[kArrangeWarps + w];
    first += counts[w];
    position += w < warp ? of_warp : 0;
    all += of_warp;
  }
  if (threadIdx.x == 0) args.offsets[blockIdx.x] = first;
  if (threadIdx.x == 0 && expert == last) args.offsets[args.experts] = first + all;
  position += first;
  for (int base = begin; base < end; base += kWarp) {
    const int i = base + lane;
    const int32_t chosen = i < end ? args.chosen[i] : -1;
    const unsigned votes = __ballot_sync(kWholeWarp, chosen == expert);
    if (chosen == expert) {
      const int place = position + __popc(votes & ((1u << lane) - 1));
      args.places[i] = place;
      args.rows[place] = i;
    } else if (expert == first_expert && i < end && (chosen < first_expert || chosen > last)) {
      args.places[i] = -1;
    }
    position += __popc(votes);
  }
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) take_kernel(TakeRows args) {
  ptx::after_earlier_kernels();
  const PackOfRow<T> at(args.width);
  if (at.row >= rows_of(args.count, args.max_rows)) return;
  const int32_t choice = args.rows[at.row];
  const T* const from = static_cast<const T*>(args.from) + choice / args.top_k * args.width + at.column;
  T* const to = static_cast<T*>(args.to) + at.row * args.width + at.column;
  if (kAligned) {
    ptx::store_16(to, ptx::load_16(from));
  } else {
    for (int i = 0; i < kPack<T>; ++i)
      if (at.column + i < args.width) to[i] = from[i];
  }
  if (args.weights && at.column == 0) args.row_weights[at.row] = args.weights[choice];
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) return_kernel(ReturnRows args) {
  ptx::after_earlier_kernels();
  const PackOfRow<T> at(args.width);
  if (at.row >= args.tokens) return;
  const int64_t left = args.width - at.column, offset = at.row * args.width + at.column;
  const int32_t* const places = args.places + at.row * args.top_k;
  float sums[kPack<T>] = {};
  if (args.add) load_floats<kAligned>(static_cast<const T*>(args.add) + offset, left, sums);
  for (int64_t j = 0; j < args.top_k; ++j) {
    const int64_t place = places[j];
    if (args.weights && at.column == 0)
      args.weights[at.row * args.top_k + j] = place < 0 ? 0.0f : args.row_weights[place];
    if (place < 0) continue;
    float row[kPack<T>];
    load_floats<kAligned>(static_cast<const T*>(args.from) + place * args.width + at.column, left, row);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) sums[i] += row[i];
  }
  store_floats<kAligned>(static_cast<T*>(args.to) + offset, left, sums);
}

}  // namespace

void arrange_rows_cuda(LaunchContext& context, const ArrangeRows& args) {
  launch(stream_of(context), arrange_kernel, dim3(static_cast<unsigned>(args.experts)), dim3(kArrangeWarps * kWarp), 0,
         args);
}

void take_rows_cuda(LaunchContext& context, const TakeRows& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(all_aligned(args.from, args.to) && args.width % kPack<T> == 0, [&](auto aligned) {
      launch(stream_of(context), take_kernel<aligned.value, T>, grid_of_packs<T>(args.max_rows, args.width, kThreads),
             dim3(kThreads), 0, args);
    });
  });
}

void return_rows_cuda(LaunchContext& context, const ReturnRows& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_flag(all_aligned(args.from, args.add, args.to) && args.width % kPack<T> == 0, [&](auto aligned) {
      launch(stream_of(context), return_kernel<aligned.value, T>, grid_of_packs<T>(args.tokens, args.width, kThreads),
             dim3(kThreads), 0, args);
    });
  });
}

}  // namespace slipstream::kernels
