// SPDX-License-Identifier: Apache-2.0
// Sums of squares on CUDA, in the order of the op card: the same bits as on the CPU.

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/workspace.h"
#include "kernels/sum_squares/sum_squares.h"

namespace slipstream::kernels {
namespace {

constexpr int64_t kBlock = 4096;  // elements, as on the op card
constexpr int kLanes = 16;        // as on the op card
constexpr int kThreads = 256;
constexpr int kPerThread = kPack<float>;              // lanes of the op card that a thread adds
constexpr int kThreadsOfBlock = kLanes / kPerThread;  // threads per block of the op card
constexpr int kBlocksOfThreads = kThreads / kThreadsOfBlock;
constexpr int64_t kBlocksAtOnce = kScratchBytes / 8;  // one double for each

/// A part, or as much of it as fits in a launch.
struct Piece {
  int64_t begin, elems;
  int64_t first_block;  // counted in the launch
  int64_t result;
  bool starts;  // false: the result already holds the sums of the part's beginning
};
/// The pieces are launch parameters, so that a recorded step needs no memory for them.
struct Pieces {
  static constexpr int kMost = 96;  // of 40 bytes each: just below the 4 KiB of a launch
  int count = 0;
  int64_t blocks = 0;
  Piece at[kMost] = {};
};

/// sums[block] = the sum of that block. A block has four threads, and each adds four lanes of the op card.
__global__ void __launch_bounds__(kThreads) blocks_kernel(const float* x, Pieces pieces, double* sums) {
  ptx::after_earlier_kernels();
  const int64_t block = int64_t{blockIdx.x} * kBlocksOfThreads + threadIdx.x / kThreadsOfBlock;
  const bool whole = block < pieces.blocks;  // no early return: the other lanes of the warp need this one
  int piece = 0;
  for (int beyond = pieces.count; beyond - piece > 1;) {
    const int middle = (piece + beyond) / 2;
    if (pieces.at[middle].first_block <= block)
      piece = middle;
    else
      beyond = middle;
  }
  const int64_t at = (block - pieces.at[piece].first_block) * kBlock, left = pieces.at[piece].elems - at;
  const int64_t elems = !whole ? 0 : left < kBlock ? left : kBlock;
  const float* from = x + pieces.at[piece].begin + at;
  const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
  double lanes[kPerThread] = {};
#pragma unroll 8
  for (int64_t i = threadIdx.x % kThreadsOfBlock * kPerThread; i < elems; i += kLanes) {
    float values[kPerThread];
    if (aligned)
      load_floats<true>(from + i, elems - i, values);
    else
      load_floats<false>(from + i, elems - i, values);
#pragma unroll
    for (int lane = 0; lane < kPerThread; ++lane)
      lanes[lane] += static_cast<double>(values[lane]) * static_cast<double>(values[lane]);
  }
#pragma unroll
  for (int width = kThreadsOfBlock / 2; width > 0; width /= 2)
#pragma unroll
    for (int lane = 0; lane < kPerThread; ++lane)
      lanes[lane] += __shfl_down_sync(kWholeWarp, lanes[lane], width, kThreadsOfBlock);
#pragma unroll
  for (int width = kPerThread / 2; width > 0; width /= 2)
#pragma unroll
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  if (threadIdx.x % kThreadsOfBlock == 0 && whole) sums[block] = lanes[0];
}

/// Runs one block per piece: its result (+)= its sums in order.
__global__ void __launch_bounds__(kThreads) finish_kernel(Pieces pieces, const double* sums, double* results) {
  ptx::after_earlier_kernels();
  __shared__ double storage[kThreads];
  const Shared<double> tile(storage);
  const Piece& piece = pieces.at[blockIdx.x];
  const int64_t count = (piece.elems + kBlock - 1) / kBlock;
  double sum = piece.starts || threadIdx.x > 0 ? 0.0 : results[piece.result];
  for (int64_t first = 0; first < count; first += kThreads) {
    // Zeros after the last one change no sum of squares, and a loop without conditions can load ahead.
    tile[threadIdx.x] = first + threadIdx.x < count ? sums[piece.first_block + first + threadIdx.x] : 0.0;
    __syncthreads();
    if (threadIdx.x == 0)
#pragma unroll 16
      for (int i = 0; i < kThreads; ++i) sum += tile[i];
    __syncthreads();
  }
  if (threadIdx.x == 0) results[piece.result] = sum;
}

void run(const LaunchContext& context, const SumSquares& args, Pieces& pieces) {
  auto* sums = static_cast<double*>(scratch_of(context));
  if (pieces.blocks > 0)
    launch(stream_of(context), blocks_kernel, dim3(static_cast<unsigned>(blocks_for(pieces.blocks, kBlocksOfThreads))),
           dim3(kThreads), 0, args.x, pieces, sums);
  launch(stream_of(context), finish_kernel, dim3(static_cast<unsigned>(pieces.count)), dim3(kThreads), 0, pieces, sums,
         args.results);
  pieces = {};
}

}  // namespace

void sum_squares_cuda(LaunchContext& context, const SumSquares& args) {
  Pieces pieces;
  for (int64_t i = 0; i < args.part_count; ++i) {
    const SumSquaresPart& part = args.parts[i];
    int64_t done = 0;
    do {
      if (pieces.count == Pieces::kMost || pieces.blocks == kBlocksAtOnce) run(context, args, pieces);
      const int64_t most = (kBlocksAtOnce - pieces.blocks) * kBlock, left = part.elems - done,
                    elems = left < most ? left : most;
      pieces.at[pieces.count++] = {part.begin + done, elems, pieces.blocks, part.result, done == 0};
      pieces.blocks += blocks_for(elems, kBlock);
      done += elems;
    } while (done < part.elems);
  }
  run(context, args, pieces);
}

}  // namespace slipstream::kernels
