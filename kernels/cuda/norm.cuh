// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA code that layer norm and RMS norm share: the choice of the kernel by width, and sums over rows in two fixed
// stages.
//
// The forward pass reads x and the tensor that is added to it, and writes both results. The backward pass reads dy, x
// and the residual, and writes dx. Each passes 4 times over a tensor. The backward pass leaves the sums of at least 32
// rows in scratch: 1 / 16 of a pass in bf16, 1 / 32 in float, twice that with a bias, three times with the sums of dx,
// too. The last kernel reads them once more. `kCentre` is layer norm: it subtracts the mean and has a bias.

#include <algorithm>
#include <type_traits>

#include "kernels/common/checks.h"
#include "kernels/cuda/norm_held.cuh"
#include "kernels/cuda/norm_wide.cuh"
#include "kernels/cuda/workspace.h"

namespace slipstream::kernels {

constexpr int kNormColumns = 32, kNormRowLanes = 32;

/// dweight (and dbias and dx_sums) (+)= the partial sums. Thread i of a place adds blocks i, i + kNormRowLanes and so
/// on, and the sums of the threads are added in order.
template <bool kCentre, typename T>
__global__ void __launch_bounds__(kNormColumns* kNormRowLanes)
    norm_finish_kernel(NormBackward<T> args, int64_t blocks, const float* partial) {
  ptx::after_earlier_kernels();
  __shared__ float storage[kNormColumns * kNormRowLanes];
  const Shared<float> of_lanes(storage);
  const NormSums<kCentre, T> layout(args);
  const int lane = static_cast<int>(threadIdx.x) % kNormColumns, part = static_cast<int>(threadIdx.x) / kNormColumns;
  const int64_t at = int64_t{blockIdx.x} * kNormColumns + lane;
  float sum = 0.0f;
  if (at < layout.floats())
#pragma unroll 8
    for (int64_t block = part; block < blocks; block += kNormRowLanes) sum += partial[block * layout.floats() + at];
  of_lanes[static_cast<int>(threadIdx.x)] = sum;
  __syncthreads();  // the sums of all lanes are there
  const bool dx = kCentre && at >= layout.before_dx(), bias = !dx && at >= layout.of_weight();
  const int64_t place = at - (dx     ? layout.before_dx()
                              : bias ? layout.of_weight()
                                     : 0),
                column = place % layout.packs * kPack<T> + place / layout.packs;
  if (part > 0 || at >= layout.floats() || column >= args.width) return;
#pragma unroll
  for (int i = 1; i < kNormRowLanes; ++i) sum += of_lanes[i * kNormColumns + lane];
  float* to = (dx ? args.dx_sums : bias ? args.dbias : args.dweight) + column;
  *to = args.accumulate ? *to + sum : sum;
}

/// Calls body(std::integral_constant) with the number of warps that share a row, or 0 if registers cannot hold the row
/// in whole packs.
template <typename T, typename Body>
void for_row_warps(int64_t width, bool aligned, const Body& body) {
  const int64_t warps = blocks_for(width, int64_t{kWarp} * kHeldPacks * kPack<T>);
  if (!aligned || warps > kMostRowWarps) return body(std::integral_constant<int, 0>{});
  if (warps <= 1) return body(std::integral_constant<int, 1>{});
  if (warps <= 2) return body(std::integral_constant<int, 2>{});
  if (warps <= 4) return body(std::integral_constant<int, 4>{});
  body(std::integral_constant<int, kMostRowWarps>{});
}

/// Calls body(std::integral_constant) with the number of packs of a row in a lane.
template <typename T, int kRowWarps, typename Body>
void for_row_packs(int64_t width, const Body& body) {
  if (width <= int64_t{kRowWarps} * kWarp * 3 * kPack<T>) return body(std::integral_constant<int, 3>{});
  body(std::integral_constant<int, kHeldPacks>{});
}

/// Enqueues.
template <bool kCentre, typename T>
void norm_forward(const LaunchContext& context, const NormForward<T>& args) {
  const bool aligned =
      args.width % kPack<T> == 0 && all_aligned(args.x, args.delta, args.sum, args.weight, args.bias, args.y);
  for_row_warps<T>(args.width, aligned, [&](auto row_warps) {
    if constexpr (constexpr int kRowWarps = row_warps.value; kRowWarps > 0) {
      using Groups = NormGroups<kRowWarps>;
      launch(stream_of(context), held_norm_forward_kernel<kCentre, kRowWarps, T>,
             dim3(static_cast<unsigned>(blocks_for(args.rows, Groups::kGroups))), dim3(Groups::kThreads), 0, args);
    } else {
      for_flag(aligned, [&](auto whole) {
        launch(stream_of(context), wide_norm_forward_kernel<kCentre, whole.value, T>,
               dim3(static_cast<unsigned>(blocks_for(args.rows, kNormWarps))), dim3(kNormWarps * kWarp), 0, args);
      });
    }
  });
}

/// Enqueues.
template <bool kCentre, typename T>
void norm_backward(const LaunchContext& context, const NormBackward<T>& args) {
  // Three turns of the sixteen warps for which each of 132 multiprocessors has registers. In a single turn, one
  // multiprocessor that a transfer occupies would double the time of the kernel; in three turns it adds a third at
  // most.
  constexpr int64_t kMostWarps = 3 * 16 * 132, kRowsLeast = 32, kSharedBytes = 96 * 1024;
  const NormSums<kCentre, T> layout(args);
  const int64_t floats = layout.floats(), row_bytes = 4 * floats, fitting = kScratchBytes / row_bytes;
  require_at_least("norm_backward", "scratch bytes of a stream", kScratchBytes, row_bytes);
  float* partial = static_cast<float*>(scratch_of(context));
  const bool aligned = args.width % kPack<T> == 0 && all_aligned(args.dy, args.x, args.weight, args.residual, args.dx);
  int64_t blocks = 0;
  // The number of blocks of rows for which the scratch has room. It depends only on the shape.
  const auto share_out = [&](int64_t warps) {
    blocks = std::min({blocks_for(args.rows, kRowsLeast), kMostWarps / warps, fitting});
    const int64_t rows_per_block = blocks > 0 ? blocks_for(args.rows, blocks) : 0;
    blocks = blocks > 0 ? blocks_for(args.rows, rows_per_block) : 0;
    return rows_per_block;
  };
  // Beside four packs of a row in eight warps, there is no shared memory for the sums of dx.
  const bool fits = !layout.has_dx || args.width <= int64_t{kMostRowWarps} * kWarp * 3 * kPack<T>;
  for_row_warps<T>(args.width, aligned && fits, [&](auto row_warps) {
    if constexpr (constexpr int kRowWarps = row_warps.value; kRowWarps > 0) {
      using Groups = NormGroups<kRowWarps>;
      const int64_t rows_per_block = share_out(Groups::kWarps);
      for_row_packs<T, kRowWarps>(args.width, [&](auto packs) {
        const int64_t staged_bytes = NormStages<kRowWarps, packs.value, T>::kBytes,
                      of_dx_bytes = layout.has_dx ? NormTotals<kRowWarps, packs.value, T>::kBytes : 0;
        if (blocks > 0)
          launch(stream_of(context), held_norm_backward_kernel<kCentre, kRowWarps, packs.value, T>,
                 dim3(static_cast<unsigned>(blocks)), dim3(Groups::kThreads),
                 static_cast<size_t>(of_dx_bytes + std::max(staged_bytes, Groups::kGroups * 4 * layout.before_dx())),
                 args, rows_per_block, partial);
      });
    } else {
      const int64_t warps_fitting = kSharedBytes / row_bytes;
      for_flag(warps_fitting > 0, [&](auto shared) {
        for_flag(aligned, [&](auto whole) {
          const int64_t warps = !shared.value ? 1 : std::min<int64_t>(warps_fitting, kNormWarps);
          const int64_t rows_per_block = share_out(warps);
          if (blocks > 0)
            launch(stream_of(context), wide_norm_backward_kernel<kCentre, shared.value, whole.value, T>,
                   dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(warps * kWarp)),
                   shared.value ? static_cast<size_t>(warps * row_bytes) : 0, args, rows_per_block, partial);
        });
      });
    }
  });
  launch(stream_of(context), norm_finish_kernel<kCentre, T>,
         dim3(static_cast<unsigned>(blocks_for(floats, kNormColumns))), dim3(kNormColumns * kNormRowLanes), 0, args,
         blocks, partial);
}

}  // namespace slipstream::kernels
