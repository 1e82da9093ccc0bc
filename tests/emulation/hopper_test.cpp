// SPDX-License-Identifier: Apache-2.0
// A product of matrices with every asynchronous operation of sm_90a, against double.

#include <fmt/core.h>
#include <hopper.h>
#include <launch.h>
#include <shared.h>

#include <array>
#include <vector>

#include "kernels/cuda/common.cuh"
#include "tests/emulation/error_of.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::kernels::hopper;
using emulation::DeviceMemory;
using test::as;

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

/// Warpgroup 0 writes a row of numbers in every turn, warpgroup 1 adds them up and stores the sums as a tile of one
/// row. Named barriers or barriers with phases hand the row over and back.
template <bool kNamed>
__global__ void turns_kernel(const __grid_constant__ TensorMap out, int turns) {
  SLIP_DYNAMIC_SHARED_1024(bytes);
  const Shared<float> row(bytes, 128);
  const Shared<uint16_t> sums(bytes + 1024, 128);
  Barrier* const written = reinterpret_cast<Barrier*>(bytes + 2048);
  Barrier* const read = written + 1;
  const int thread = static_cast<int>(threadIdx.x), column = thread % 128;
  if (!kNamed && thread == 0) {
    barrier_init(written, 128);
    barrier_init(read, 128);
  }
  if (!kNamed) __syncthreads();
  if (thread < 128) {
    for (int turn = 0; turn < turns; ++turn) {
      if (kNamed) {
        if (turn > 0) named_barrier_sync(1, 256);
      } else {
        barrier_wait(read, (turn & 1) ^ 1);
      }
      row[column] = static_cast<float>(turn + column);
      if (kNamed)
        named_barrier_arrive(2, 256);
      else
        barrier_arrive(written);
    }
    return;
  }
  float sum = 0.0f;
  for (int turn = 0; turn < turns; ++turn) {
    if (kNamed)
      named_barrier_sync(2, 256);
    else
      barrier_wait(written, turn & 1);
    sum += row[127 - column];
    if (turn + 1 == turns) break;
    if (kNamed)
      named_barrier_arrive(1, 256);
    else
      barrier_arrive(read);
  }
  sums[column] = from_float<bfloat16>(sum).bits;
  fence_async();
  named_barrier_sync(3, 128);
  if (column > 0) return;
  tma_store<2>(out, bytes + 1024, 0, 0);
  tma_store_commit();
  tma_store_wait<0>();
}

TensorMap map_of(const DeviceMemory& memory, uint64_t rows, uint64_t columns, std::array<uint32_t, 2> box,
                 Swizzle swizzle) {
  TensorMap map;
  std::string reason;
  REQUIRE(make_tensor_map(map,
                          {.base = memory.data(),
                           .rank = 2,
                           .sizes = {columns, rows},
                           .strides_bytes = {0, columns * 2},
                           .box = {box[0], box[1]},
                           .swizzle = swizzle},
                          reason));
  return map;
}
TensorMap tiles_of(const DeviceMemory& memory, uint64_t rows, uint64_t columns) {
  return map_of(memory, rows, columns, {kTile, kTile}, Swizzle::b128);
}

/// Small integers, exact in bfloat16; sums of some hundred products are exact in float.
float value_of(int seed, size_t i) { return static_cast<float>((seed + 7 * static_cast<int>(i % 1009)) % 13 - 6); }

}  // namespace

TEST_CASE("hopper: a pipelined product with TMA, warpgroup products and stores equals double") {
  const emulation::Capability hopper(90);
  const size_t rows = 100, columns = 136, depth = 200;
  DeviceMemory left(rows * depth * 2, "left"), right(columns * depth * 2, "right"), out(rows * columns * 2, "out");
  for (size_t i = 0; i < rows * depth; ++i) as<bfloat16>(left)[i] = bfloat16(value_of(1, i) / 64);
  for (size_t i = 0; i < columns * depth; ++i) as<bfloat16>(right)[i] = bfloat16(value_of(5, i));
  for (bool descending : {false, true}) {
    emulation::set_descending(descending);
    launch(cudaStream_t{}, product_kernel, dim3(2), dim3(256), Pipeline::kBytes, tiles_of(left, rows, depth),
           tiles_of(right, columns, depth), tiles_of(out, rows, columns), 6, 3, 4);
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c) {
        double sum = 0;
        for (size_t k = 0; k < depth; ++k)
          sum += static_cast<double>(to_float(as<bfloat16>(left)[r * depth + k])) *
                 static_cast<double>(to_float(as<bfloat16>(right)[c * depth + k]));
        REQUIRE(as<bfloat16>(out)[r * columns + c].bits == bfloat16(static_cast<float>(sum)).bits);
      }
    CHECK(out.intact());
    std::memset(out.data(), 0xff, out.size_bytes());
  }
  emulation::set_descending(false);
}

TEST_CASE("hopper: warpgroups hand a row over by named barriers and by phases") {
  const emulation::Capability hopper(90);
  DeviceMemory out(128 * 2, "out");
  const TensorMap map = map_of(out, 1, 128, {128, 1}, Swizzle::none);
  for (bool descending : {false, true})
    for (int turns : {1, 2, 5}) {
      emulation::set_descending(descending);
      launch(cudaStream_t{}, turns_kernel<true>, dim3(1), dim3(256), 2064, map, turns);
      const std::vector<bfloat16> named(as<bfloat16>(out), as<bfloat16>(out) + 128);
      launch(cudaStream_t{}, turns_kernel<false>, dim3(2), dim3(256), 2064, map, turns);
      for (int i = 0; i < 128; ++i) {
        const float sum = static_cast<float>(turns * (127 - i) + turns * (turns - 1) / 2);
        REQUIRE(as<bfloat16>(out)[i].bits == bfloat16(sum).bits);
        REQUIRE(named[static_cast<size_t>(i)].bits == bfloat16(sum).bits);
      }
    }
  emulation::set_descending(false);
}
