// SPDX-License-Identifier: Apache-2.0
#pragma once
// Inline PTX of sm_90a: barriers in shared memory, TMA tiles, warpgroup products, and registers that move between
// warps.
//
// tests/emulation/hopper.h is its counterpart on the host, with the layouts and rules of the PTX manual. Code for other
// architectures than sm_90a traps, and the dispatch never selects it (hopper_compiled() and compute_capability()).

#include <cuda_runtime.h>
#include <ptx.h>

#include <cstdint>

#include "kernels/cuda/tensor_map.h"

/// Declares `name`, the bytes of the block's dynamic shared memory, aligned to 1024 as the largest swizzle needs it.
#define SLIP_DYNAMIC_SHARED_1024(name)                    \
  extern __shared__ __align__(1024) unsigned char name[]; \
  ::slipstream::kernels::hopper::require_aligned_1024(name)

namespace slipstream::kernels::hopper {

/// Does this compilation pass make code for sm_90a? Other passes leave kernels empty: `if constexpr (kDeviceCode)`.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kDeviceCode = true;
#define SLIP_SM90A(...) asm volatile(__VA_ARGS__)
#else
constexpr bool kDeviceCode = false;
#define SLIP_SM90A(...) __trap()
#endif

/// Traps unless the address is a multiple of 1024. A declaration aligns static shared memory, but no manual promises
/// this for the beginning of dynamic shared memory, and a swizzle from another address would silently mix rows.
__device__ __forceinline__ void require_aligned_1024(const void* shared) {
  if (!kDeviceCode || threadIdx.x != 0) return;  // one thread: in all of them it makes the forward kernel spill
  uint32_t address = ptx::shared_address(shared);
  asm volatile("" : "+r"(address));  // without this, the compiler would assume the alignment of the declaration
  if (address % 1024 != 0) __trap();
}

// --- barriers

/// Makes a barrier with `arrivals` arrivals per phase. Phases alternate in parity, beginning with 0.
__device__ __forceinline__ void barrier_init(Barrier* barrier, int arrivals) {
  SLIP_SM90A("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ptx::shared_address(barrier)), "r"(arrivals) : "memory");
}
/// Makes the barriers that this thread has initialised visible to TMA. Other threads see them after a __syncthreads.
__device__ __forceinline__ void barrier_init_fence() {
  SLIP_SM90A("fence.mbarrier_init.release.cluster;" ::: "memory");
  SLIP_SM90A("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
  SLIP_SM90A("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ptx::shared_address(barrier)) : "memory");
}
/// Arrives. The phase also waits for `bytes` bytes of tma_load.
__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, uint32_t bytes) {
  SLIP_SM90A("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ptx::shared_address(barrier)), "r"(bytes)
             : "memory");
}
/// Waits until the phase of this parity has completed. The phase before the first one counts as complete, so parity 1
/// passes at once.
__device__ __forceinline__ void barrier_wait(Barrier* barrier, int parity) {
  SLIP_SM90A(
      "{\n"
      ".reg .pred complete;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra again;\n"
      "}" ::"r"(ptx::shared_address(barrier)),
      "r"(parity)
      : "memory");
}
/// Waits for `threads` threads, a multiple of 32, at barrier `id` of 1 to 15.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  SLIP_SM90A("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Arrives without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  SLIP_SM90A("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Orders earlier writes of this thread, or writes that a barrier has made visible to it, before asynchronous accesses
/// of wgmma and TMA to shared memory.
__device__ __forceinline__ void fence_async() { SLIP_SM90A("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- TMA

__device__ __forceinline__ void tensor_map_prefetch(const TensorMap& map) {
  SLIP_SM90A("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Starts loading the box of `map` at element (c0, c1, ...), innermost first, to `shared`. Elements outside the tensor
/// become zeros. All bytes of the box complete on `barrier`.
template <int kRank>
__device__ __forceinline__ void tma_load(void* shared, const TensorMap& map, Barrier* barrier, int c0, int c1,
                                         int c2 = 0, int c3 = 0, int c4 = 0) {
  static_assert(kRank >= 2 && kRank <= 5);
  const uint32_t to = ptx::shared_address(shared), complete = ptx::shared_address(barrier);
  if constexpr (kRank == 2)
    SLIP_SM90A(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(&map), "r"(complete), "r"(c0), "r"(c1)
        : "memory");
  else if constexpr (kRank == 3)
    SLIP_SM90A(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(to),
        "l"(&map), "r"(complete), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
  else if constexpr (kRank == 4)
    SLIP_SM90A(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
        "%6}], [%2];" ::"r"(to),
        "l"(&map), "r"(complete), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
  else
    SLIP_SM90A(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
        "%7}], [%2];" ::"r"(to),
        "l"(&map), "r"(complete), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}
/// Starts storing a box from `shared`. Elements outside the tensor are not written.
template <int kRank>
__device__ __forceinline__ void tma_store(const TensorMap& map, const void* shared, int c0, int c1, int c2 = 0,
                                          int c3 = 0, int c4 = 0) {
  static_assert(kRank >= 2 && kRank <= 5);
  const uint32_t from = ptx::shared_address(shared);
  if constexpr (kRank == 2)
    SLIP_SM90A("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
               "r"(from), "r"(c0), "r"(c1)
               : "memory");
  else if constexpr (kRank == 3)
    SLIP_SM90A("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
               "r"(from), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
  else if constexpr (kRank == 4)
    SLIP_SM90A("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
  else
    SLIP_SM90A(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
        "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}
/// Closes the group of this thread's stores since the last commit.
__device__ __forceinline__ void tma_store_commit() { SLIP_SM90A("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until all committed groups of this thread, except the last `kPending`, have read shared memory. tma_store_wait
/// waits until they have also written global memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  SLIP_SM90A("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
  SLIP_SM90A("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// --- products of a warpgroup: four warps, the first of which is a multiple of 4, run these functions together

/// A 64 x kN tile of float sums in the registers of a warpgroup. Element i of lane l in warp w of the group is in row
/// 16 w + l / 4 + 8 (i / 2 % 2) and column 8 (i / 4) + 2 (l % 4) + i % 2.
template <int kN>
struct Accumulator {
  float values[kN / 2];
  __device__ __forceinline__ float& operator[](int i) { return values[i]; }
  __device__ __forceinline__ const float& operator[](int i) const { return values[i]; }
};

/// The descriptor of an operand of 64 x 16 (A) or kN x 16 (B) elements in shared memory, for wgmma. `shared` and both
/// distances are multiples of 16 bytes. The rows of A, or the columns of B, are counted by i.
///   K-major, swizzled:   `stride_bytes` from 8 i to the next 8; `leading_bytes` is not used
///   MN-major, swizzled:  `stride_bytes` from 8 k to the next 8, `leading_bytes` from one span of i to the next
///   K-major, none:       `stride_bytes` from 8 i to the next 8, `leading_bytes` from 8 k to the next 8
///   MN-major, none:      `stride_bytes` from 8 i to the next 8, `leading_bytes` from 8 k to the next 8
__device__ __forceinline__ uint64_t matrix_descriptor(const void* shared, uint32_t leading_bytes, uint32_t stride_bytes,
                                                      Swizzle swizzle) {
  return descriptor_of(ptx::shared_address(shared), leading_bytes, stride_bytes, swizzle);
}

namespace detail {
/// The values of these registers are computed before this point and read after it.
template <int kN>
__device__ __forceinline__ void pin(Accumulator<kN>& sums) {
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) asm volatile("" : "+f"(sums.values[i])::"memory");
}
template <int kRegisters>
__device__ __forceinline__ void pin(uint32_t (&a)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
template <typename T, int kCount>
__device__ __forceinline__ void pin(T (&all)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) pin(all[i]);
}
}  // namespace detail

/// The compiler computes these sums before this point and reads them after it.
template <typename... Sums>
__device__ __forceinline__ void wgmma_pin(Sums&... sums) {
  (detail::pin(sums), ...);
}

/// This is required before the first product, and before a product some of whose registers other instructions have
/// accessed. `registers` are these accumulators and fragments of A.
template <typename... Registers>
__device__ __forceinline__ void wgmma_fence(Registers&... registers) {
  (detail::pin(registers), ...);
  SLIP_SM90A("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Closes the group of the products since the last commit.
__device__ __forceinline__ void wgmma_commit() { SLIP_SM90A("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits for all committed groups except the last `kPending`. `sums` become readable, and all shared operands of the
/// completed groups are free.
template <int kPending, typename... Sums>
__device__ __forceinline__ void wgmma_wait(Sums&... sums) {
  SLIP_SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  (detail::pin(sums), ...);
}

// Eight registers of the accumulator, as text and as operands.
#define SLIP_TEXT_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SLIP_TEXT_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define SLIP_TEXT_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define SLIP_TEXT_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define SLIP_TEXT_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define SLIP_TEXT_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define SLIP_TEXT_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define SLIP_TEXT_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define SLIP_TEXT_N32 SLIP_TEXT_0 ", " SLIP_TEXT_1
#define SLIP_TEXT_N64 SLIP_TEXT_0 ", " SLIP_TEXT_1 ", " SLIP_TEXT_2 ", " SLIP_TEXT_3
#define SLIP_TEXT_N128 SLIP_TEXT_N64 ", " SLIP_TEXT_4 ", " SLIP_TEXT_5 ", " SLIP_TEXT_6 ", " SLIP_TEXT_7
#define SLIP_SUMS(i)                                                                                                  \
  "+f"(d[8 * i]), "+f"(d[8 * i + 1]), "+f"(d[8 * i + 2]), "+f"(d[8 * i + 3]), "+f"(d[8 * i + 4]), "+f"(d[8 * i + 5]), \
      "+f"(d[8 * i + 6]), "+f"(d[8 * i + 7])
#define SLIP_SUMS_N32 SLIP_SUMS(0), SLIP_SUMS(1)
#define SLIP_SUMS_N64 SLIP_SUMS(0), SLIP_SUMS(1), SLIP_SUMS(2), SLIP_SUMS(3)
#define SLIP_SUMS_N128 SLIP_SUMS_N64, SLIP_SUMS(4), SLIP_SUMS(5), SLIP_SUMS(6), SLIP_SUMS(7)
// The numbers of the operands that follow the accumulator's registers, in order.
#define SLIP_WGMMA(n, a, b, add, major_a, major_b)                                                    \
  SLIP_SM90A("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add                                            \
             ", 0;\n"                                                                                 \
             "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" SLIP_TEXT_N##n              \
             "}, %" #a ", %" #b ", add, 1, 1, %" #major_a ", %" #major_b ";\n}"                       \
             : SLIP_SUMS_N##n                                                                         \
             : "l"(a_shared), "l"(b_shared), "r"(accumulate ? 1 : 0), "n"(static_cast<int>(kMajorA)), \
               "n"(static_cast<int>(kMajorB)))
#define SLIP_WGMMA_REGISTERS(n, a0, a1, a2, a3, b, add, major_b)                                   \
  SLIP_SM90A("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add                                         \
             ", 0;\n"                                                                              \
             "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" SLIP_TEXT_N##n           \
             "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", add, 1, 1, %" #major_b ";\n}"  \
             : SLIP_SUMS_N##n                                                                      \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_shared), "r"(accumulate ? 1 : 0), \
               "n"(static_cast<int>(kMajorB)))

/// Starts sums (+)= A B for A of 64 x 16 and B of 16 x kN bfloat16 elements in shared memory. `accumulate` false
/// replaces the sums. Major::k: the 16 elements of a row of A, or of a column of B, are neighbours in memory.
template <int kN, Major kMajorA, Major kMajorB>
__device__ __forceinline__ void wgmma(Accumulator<kN>& sums, uint64_t a_shared, uint64_t b_shared, bool accumulate) {
  static_assert(kN == 32 || kN == 64 || kN == 128);
  float(&d)[kN / 2] = sums.values;
  if constexpr (kN == 32) SLIP_WGMMA(32, 16, 17, 18, 19, 20);
  if constexpr (kN == 64) SLIP_WGMMA(64, 32, 33, 34, 35, 36);
  if constexpr (kN == 128) SLIP_WGMMA(128, 64, 65, 66, 67, 68);
}
/// The same with A in registers. Its layout is that of A in ptx::mma_16x8x16 for the 16 rows of each warp.
template <int kN, Major kMajorB>
__device__ __forceinline__ void wgmma_registers(Accumulator<kN>& sums, const uint32_t (&a)[4], uint64_t b_shared,
                                                bool accumulate) {
  static_assert(kN == 32 || kN == 64 || kN == 128);
  float(&d)[kN / 2] = sums.values;
  if constexpr (kN == 32) SLIP_WGMMA_REGISTERS(32, 16, 17, 18, 19, 20, 21, 22);
  if constexpr (kN == 64) SLIP_WGMMA_REGISTERS(64, 32, 33, 34, 35, 36, 37, 38);
  if constexpr (kN == 128) SLIP_WGMMA_REGISTERS(128, 64, 65, 66, 67, 68, 69, 70);
}

// --- sums in global memory

/// Adds four floats at `p`, which is a multiple of 16 bytes, without waiting.
__device__ __forceinline__ void add_16(float* p, const float (&values)[4]) {
  SLIP_SM90A("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(values[0]), "f"(values[1]),
             "f"(values[2]), "f"(values[3])
             : "memory");
}

// --- registers of a warpgroup

/// Takes registers from the block's pool until each thread has `kRegisters`, a multiple of 8 from 24 to 256. Waits
/// until others have given them up.
template <int kRegisters>
__device__ __forceinline__ void registers_raise() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  SLIP_SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
/// Gives registers up until each thread has `kRegisters`.
template <int kRegisters>
__device__ __forceinline__ void registers_lower() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  SLIP_SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#undef SLIP_SM90A

}  // namespace slipstream::kernels::hopper
