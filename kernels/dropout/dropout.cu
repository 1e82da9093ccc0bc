// SPDX-License-Identifier: Apache-2.0
// Dropout on CUDA: a thread computes the Philox words and the elements of 16 bytes of a row.

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/dropout/dropout.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;

/// The arguments of dropout in the form of the device.
struct Masks {
  const DropoutSample* samples;
  int64_t first_row, tokens;
  Positions positions;
  uint64_t key;
  uint32_t threshold;
  float scale;
};

template <bool kAligned, bool kAdds, typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(int64_t rows, int64_t width, const T* x, const T* d, T* y, Masks masks) {
  ptx::after_earlier_kernels();
  const int64_t packs = (width + kPack<T> - 1) / kPack<T>;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = index / packs;
  if (row >= rows) return;
  const int64_t column = index % packs * kPack<T>, count = width - column, at = row * width + column;
  const int64_t token = (masks.first_row + row) % masks.tokens;
  const DropoutSample sample = masks.samples[(masks.first_row + row) / masks.tokens];
  const uint32_t position = masks.positions.of(token);
  float values[kPack<T>];
  load_floats<kAligned>(d + at, count, values);
#pragma unroll
  for (int i = 0; i < kPack<T>; i += 4) {
    uint32_t words[4] = {static_cast<uint32_t>((column + i) / 4), position, sample.sequence, sample.step};
    philox_words(words, masks.key);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // The mask between product and sum also prevents a fused operation, which would round differently.
      const uint32_t kept = words[j] >= masks.threshold ? 0xffffffffu : 0u;
      values[i + j] = __uint_as_float(__float_as_uint(values[i + j] * masks.scale) & kept);
    }
  }
  if constexpr (kAdds) {
    float sums[kPack<T>];
    load_floats<kAligned>(x + at, count, sums);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) values[i] = sums[i] + values[i];
  }
  store_floats<kAligned>(y + at, count, values);
}

}  // namespace

void dropout_cuda(LaunchContext& context, const Dropout& args) {
  const Masks masks{.samples = args.samples,
                    .first_row = args.first_row,
                    .tokens = args.chunks.local_tokens(),
                    .positions = Positions(args.chunks),
                    .key = args.key,
                    .threshold = dropout_threshold(args.rate),
                    .scale = dropout_scale(args.rate)};
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t threads = args.rows * blocks_for(args.width, kPack<T>);
    for_flag(args.width % kPack<T> == 0 && all_aligned(args.x, args.d, args.y), [&](auto aligned) {
      for_flag(args.x != nullptr, [&](auto adds) {
        launch(stream_of(context), dropout_kernel<aligned.value, adds.value, T>,
               dim3(static_cast<unsigned>(blocks_for(threads, kThreads))), dim3(kThreads), 0, args.rows, args.width,
               static_cast<const T*>(args.x), static_cast<const T*>(args.d), static_cast<T*>(args.y), masks);
      });
    });
  });
}

}  // namespace slipstream::kernels
