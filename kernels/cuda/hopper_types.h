// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensor shapes of TMA and matrix descriptors of wgmma, for the device and for its emulation.

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

namespace slipstream::kernels::hopper {

/// An mbarrier in shared memory.
using Barrier = uint64_t;

/// The registers that each thread of a block has at the launch of a kernel with __launch_bounds__(threads, 1): a
/// multiple of 8 of the 65536 of a multiprocessor. setmaxnreg moves registers only among the threads of the block (PTX
/// ISA, setmaxnreg: "per-CTA-register-pool"). The registers of the warpgroups may therefore sum up to those of the
/// launch, not to 65536.
constexpr int registers_at_launch(int threads) { return 65536 / threads / 8 * 8 < 255 ? 65536 / threads / 8 * 8 : 255; }

/// Throws: ResourceError unless blocks of `threads` threads, launched with `at_launch` registers per thread, have the
/// `wanted` registers, summed up over one thread of each warpgroup. A kernel whose warpgroups want more would wait
/// forever.
void require_registers(const char* kernel, int threads, int at_launch, int wanted);

/// The permutation of 16-byte chunks in rows of this many bytes: chunk c of row r is at c ^ (r % 8) (b128), c ^ (r / 2
/// % 4) (b64) or c ^ (r / 4 % 2) (b32).
enum class Swizzle { none, b32, b64, b128 };
__host__ __device__ constexpr uint32_t span_bytes(Swizzle swizzle) {
  return swizzle == Swizzle::none ? 16u : 16u << static_cast<int>(swizzle);
}

/// The byte of a tile that holds its byte `at` before swizzling. The tile begins at a multiple of 8 spans.
__host__ __device__ constexpr uint32_t swizzled(uint32_t at, Swizzle swizzle) {
  return at ^ (at >> 3 & (span_bytes(swizzle) - 16));
}

/// The elements of an operand that are neighbours in memory: those along k, or those along m (of A) or n (of B).
enum class Major { k = 0, mn = 1 };

/// A bfloat16 tensor in global memory, with its innermost dimension first, and the box that one tma_load or tma_store
/// moves.
struct TensorShape {
  const void* base = nullptr;
  int rank = 2;
  uint64_t sizes[5] = {};
  uint64_t strides_bytes[5] = {};  // by dimension; [0] is not used
  uint32_t box[5] = {};
  Swizzle swizzle = Swizzle::none;
};

/// Pure. Does TMA take this shape? If not, `reason` is the violated rule with its numbers.
bool tensor_shape_fits(const TensorShape& shape, std::string& reason);

/// The fields of a matrix descriptor of wgmma; addresses and distances are multiples of 16.
__host__ __device__ constexpr uint64_t descriptor_of(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes,
                                                     Swizzle swizzle) {
  constexpr uint64_t kCodes[] = {0, 3, 2, 1};
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{(leading_bytes & 0x3ffff) >> 4} << 16 |
         uint64_t{(stride_bytes & 0x3ffff) >> 4} << 32 | kCodes[static_cast<int>(swizzle)] << 62;
}

}  // namespace slipstream::kernels::hopper
