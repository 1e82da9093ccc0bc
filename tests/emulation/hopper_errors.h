// SPDX-License-Identifier: Apache-2.0
#pragma once
// What kernels with one mistake share: barriers, a tile of TMA, and operands of products.

#include <hopper.h>
#include <launch.h>
#include <shared.h>

#include "tests/emulation/error_of.h"

namespace slipstream::test {

using namespace slipstream::kernels;
using namespace slipstream::kernels::hopper;

constexpr size_t kSharedBytes = 32 * 1024, kBarrierAt = 16 * 1024;

/// The error of a block that runs `body` in every thread, or of several; empty if it runs.
template <typename Body>
std::string error_in(const Body& body, unsigned threads = 256, size_t shared_bytes = kSharedBytes,
                     unsigned blocks = 1) {
  try {
    emulation::run({blocks, 1, 1}, {threads, 1, 1}, shared_bytes, body, std::source_location::current(), "a_kernel");
  } catch (const emulation::Error& error) {
    return error.what();
  }
  return {};
}

/// The error of a kernel that sees wrong values.
[[noreturn]] inline void wrong(const std::string& what) { emulation::fail({"a test"}, what); }

inline int thread() { return static_cast<int>(threadIdx.x); }
inline unsigned char* shared() { return emulation::dynamic_shared(); }
inline Barrier* barrier(int i = 0) { return reinterpret_cast<Barrier*>(shared() + kBarrierAt) + i; }
inline Shared<float> floats() { return Shared<float>(shared(), 2048); }

inline void init(int arrivals, int barriers = 1) {
  if (thread() == 0) {
    for (int i = 0; i < barriers; ++i) barrier_init(barrier(i), arrivals);
    barrier_init_fence();
  }
  __syncthreads();
}

/// A tensor of 64 x 64 elements, loaded as one box.
struct Tile {
  emulation::DeviceMemory memory{64 * 64 * 2, "tile"};
  TensorShape shape;
  TensorMap map;
  static constexpr uint32_t kBytes = 64 * 64 * 2;
  explicit Tile(Swizzle swizzle = Swizzle::b128, uint32_t box_rows = 64, uint64_t rows = 64) {
    std::memset(memory.data(), 0, memory.size_bytes());
    shape = {.base = memory.data(),
             .rank = 2,
             .sizes = {64, rows},
             .strides_bytes = {0, 128},
             .box = {span_bytes(swizzle) / 2, box_rows},
             .swizzle = swizzle};
    std::string reason;
    if (!make_tensor_map(map, shape, reason)) throw std::logic_error(reason);
  }
};

inline void load(const Tile& tile, int i = 0, uint32_t bytes = Tile::kBytes) {
  barrier_arrive_expect(barrier(i), bytes);
  tma_load<2>(shared(), tile.map, barrier(i), 0, 0);
}
inline uint64_t operand(int byte = 0) { return matrix_descriptor(shared() + byte, 16, 1024, Swizzle::b128); }
inline void multiply(Accumulator<64>& sums, bool accumulate = false) {
  wgmma<64, Major::k, Major::k>(sums, operand(), operand(8192), accumulate);
}
/// Both operands are zeros.
inline void fill() {
  const Shared<float> all(shared(), 4096);
  for (int i = thread(); i < 4096; i += static_cast<int>(blockDim.x)) all[i] = 0.0f;
  fence_async();
  __syncthreads();
}

}  // namespace slipstream::test
