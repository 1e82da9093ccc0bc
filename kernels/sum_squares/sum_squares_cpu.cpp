// SPDX-License-Identifier: Apache-2.0
// Sums of squares of fixed blocks, added in block order.

#include "kernels/sum_squares/sum_squares.h"

#include "kernels/common/simd.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

constexpr int64_t kBlock = 4096;
// The number of blocks whose sums are kept in one array: 4 Mi elements between two joins of the threads.
constexpr int64_t kBlocksAtOnce = 1024;
// The lanes of a block, which are the same on every instruction set.
constexpr int kSumLanes = 16;
constexpr int kDoubles = SLIP_VECTOR_BYTES / 8;
typedef double Vd __attribute__((vector_size(SLIP_VECTOR_BYTES)));
typedef float Vfd __attribute__((vector_size(SLIP_VECTOR_BYTES / 2)));

double block_sum(const float* x, int64_t elems) {
  constexpr int kVectors = kSumLanes / kDoubles;
  Vd sums[kVectors] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= elems; i += kSumLanes)
    for (int j = 0; j < kVectors; ++j) {
      Vfd narrow;
      std::memcpy(&narrow, x + i + j * kDoubles, sizeof narrow);
      const Vd wide = __builtin_convertvector(narrow, Vd);
      sums[j] += wide * wide;
    }
  double lanes[kSumLanes];
  std::memcpy(lanes, sums, sizeof lanes);
  for (int lane = 0; i < elems; ++i, ++lane) lanes[lane] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int width = kSumLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

double part_sum(LaunchContext& context, const float* x, int64_t elems) {
  const int64_t blocks = (elems + kBlock - 1) / kBlock;
  double total = 0.0;
  for (int64_t first = 0; first < blocks; first += kBlocksAtOnce) {
    const int64_t count = blocks - first < kBlocksAtOnce ? blocks - first : kBlocksAtOnce;
    double sums[kBlocksAtOnce];
    context.parallel_for(count, 8, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t at = (first + block) * kBlock;
        sums[block] = block_sum(x + at, elems - at < kBlock ? elems - at : kBlock);
      }
    });
    for (int64_t block = 0; block < count; ++block) total += sums[block];
  }
  return total;
}

}  // namespace

void sum_squares_cpu(LaunchContext& context, const SumSquares& args) {
  for (int64_t i = 0; i < args.part_count; ++i)
    args.results[args.parts[i].result] = part_sum(context, args.x + args.parts[i].begin, args.parts[i].elems);
}

}  // namespace slipstream::kernels::SLIP_ISA
