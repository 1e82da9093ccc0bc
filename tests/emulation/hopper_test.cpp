// SPDX-License-Identifier: Apache-2.0
// A product of matrices with every asynchronous operation of sm_90a, against double.

#include <fmt/core.h>
#include <hopper.h>
#include <launch.h>
#include <shared.h>

#include "tests/emulation/emulator.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::kernels::hopper;
using emulation::DeviceMemory;

namespace {

constexpr int kTile = 64, kStages = 2;
constexpr uint32_t kTileBytes = kTile * kTile * 2;

/// Barriers behind the tiles.
struct Pipeline {
  unsigned char *left, *right, *out;
  Barrier *full, *empty;
  __device__ explicit Pipeline(unsigned char* bytes)
      : left(bytes),
        right(bytes + kStages * kTileBytes),
        out(bytes + 2 * kStages * kTileBytes),
        full(reinterpret_cast<Barrier*>(out + kTileBytes)),
        empty(full + kStages) {}
  static constexpr size_t kBytes = (2 * kStages + 1) * kTileBytes + 2 * kStages * sizeof(Barrier);
};

/// out = left right^T, tiles of 64 x 64; a block computes tiles blockIdx.x, blockIdx.x + gridDim.x, ... of a row-major
/// grid of `tiles` x `columns` tiles. Warpgroup 1 loads, warpgroup 0 multiplies and stores.
__global__ void __launch_bounds__(256, 1)
    product_kernel(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                   const __grid_constant__ TensorMap out, int tiles, int columns, int steps) {
  SLIP_DYNAMIC_SHARED_1024(bytes);
  const Pipeline shared(bytes);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(shared.full + s, 1);
      barrier_init(shared.empty + s, 128);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  int stage = 0, round = 0;
  const auto next = [&] {
    stage = (stage + 1) % kStages;
    round += stage == 0;
  };
  if (thread >= 128) {
    registers_lower<40>();
    if (thread > 128) return;
    tensor_map_prefetch(left);
    tensor_map_prefetch(right);
    for (int tile = first; tile < tiles; tile += blocks)
      for (int k = 0; k < steps; ++k, next()) {
        barrier_wait(shared.empty + stage, (round & 1) ^ 1);
        barrier_arrive_expect(shared.full + stage, 2 * kTileBytes);
        tma_load<2>(shared.left + stage * kTileBytes, left, shared.full + stage, k * kTile, tile / columns * kTile);
        tma_load<2>(shared.right + stage * kTileBytes, right, shared.full + stage, k * kTile, tile % columns * kTile);
      }
    return;
  }
  registers_raise<240>();
  Accumulator<kTile> sums;
  for (int tile = first; tile < tiles; tile += blocks) {
    for (int k = 0; k < steps; ++k, next()) {
      barrier_wait(shared.full + stage, round & 1);
      wgmma_fence(sums);
      for (int i = 0; i < kTile / 16; ++i)
        wgmma<kTile, Major::k, Major::k>(
            sums, matrix_descriptor(shared.left + stage * kTileBytes + 32 * i, 16, 1024, Swizzle::b128),
            matrix_descriptor(shared.right + stage * kTileBytes + 32 * i, 16, 1024, Swizzle::b128), k + i > 0);
      wgmma_commit();
      wgmma_wait<0>(sums);
      barrier_arrive(shared.empty + stage);
    }
    if (thread == 0) tma_store_wait_read<0>();
    named_barrier_sync(1, 128);
    const int row = thread / 32 * 16 + thread % 32 / 4;
    const Shared<uint32_t> pairs(shared.out, kTileBytes / 4);
    for (int i = 0; i < kTile / 2; i += 2) {
      const int at = (row + 8 * (i / 2 % 2)) * kTile + 8 * (i / 4) + 2 * (thread % 4);
      pairs[swizzled(static_cast<uint32_t>(2 * at), Swizzle::b128) / 4] = ptx::bf16_pair(sums[i], sums[i + 1]);
    }
    fence_async();
    named_barrier_sync(2, 128);
    if (thread == 0) {
      tma_store<2>(out, shared.out, tile % columns * kTile, tile / columns * kTile);
      tma_store_commit();
    }
  }
  if (thread == 0) tma_store_wait_read<0>();
}

TensorMap map_of(const DeviceMemory& memory, uint64_t rows, uint64_t columns) {
  TensorMap map;
  std::string reason;
  REQUIRE(make_tensor_map(map,
                          {.base = memory.data(),
                           .rank = 2,
                           .sizes = {columns, rows},
                           .strides_bytes = {0, columns * 2},
                           .box = {kTile, kTile},
                           .swizzle = Swizzle::b128},
                          reason));
  return map;
}

/// Small integers, exact in bfloat16; sums of some hundred products are exact in float.
float value_of(int seed, size_t i) { return static_cast<float>((seed + 7 * static_cast<int>(i % 1009)) % 13 - 6); }

bfloat16* elements(const DeviceMemory& memory) { return reinterpret_cast<bfloat16*>(memory.data()); }

}  // namespace

TEST_CASE("hopper: a pipelined product with TMA, warpgroup products and stores equals double") {
  emulation::set_compute_capability(90);
  const size_t rows = 100, columns = 136, depth = 200;
  DeviceMemory left(rows * depth * 2, "left"), right(columns * depth * 2, "right"), out(rows * columns * 2, "out");
  for (size_t i = 0; i < rows * depth; ++i) elements(left)[i] = bfloat16(value_of(1, i) / 64);
  for (size_t i = 0; i < columns * depth; ++i) elements(right)[i] = bfloat16(value_of(5, i));
  for (bool descending : {false, true}) {
    emulation::set_descending(descending);
    launch(cudaStream_t{}, product_kernel, dim3(2), dim3(256), Pipeline::kBytes, map_of(left, rows, depth),
           map_of(right, columns, depth), map_of(out, rows, columns), 6, 3, 4);
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c) {
        double sum = 0;
        for (size_t k = 0; k < depth; ++k)
          sum += static_cast<double>(static_cast<float>(elements(left)[r * depth + k])) *
                 static_cast<double>(static_cast<float>(elements(right)[c * depth + k]));
        REQUIRE(static_cast<float>(elements(out)[r * columns + c]) ==
                static_cast<float>(bfloat16(static_cast<float>(sum))));
      }
    CHECK(out.intact());
    std::memset(out.data(), 0xff, out.size_bytes());
  }
  emulation::set_descending(false);
  emulation::set_compute_capability(80);
}
