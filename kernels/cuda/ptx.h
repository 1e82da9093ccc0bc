// SPDX-License-Identifier: Apache-2.0
#pragma once
// All inline PTX for sm_80: tensor cores, asynchronous copies, and conversions that CUDA C++ lacks.
//
// tests/emulation/ptx.h is its counterpart on the host, with the fragment layouts of the PTX manual.

#include <cuda_runtime.h>

#include <cstdint>

namespace slipstream::kernels::ptx {

/// Waits until the kernels before this one in its stream have ended and their writes are visible. A kernel calls it
/// first, before it touches global memory (launch.h). Code for GPUs before 9.0 has no such instruction.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The same. After it, the next kernel of the stream may begin, up to its own wait, when all blocks of this one have
/// come here.
__device__ __forceinline__ void after_earlier_kernels() {
  wait_for_earlier_kernels();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// 16 bytes as four registers.
struct alignas(16) Words {
  uint32_t word[4];
};

/// One load or store of 16 bytes; `p` is aligned to 16.
__device__ __forceinline__ Words load_16(const void* p) { return *static_cast<const Words*>(p); }
__device__ __forceinline__ void store_16(void* p, const Words& value) { *static_cast<Words*>(p) = value; }

/// One load of 8 bytes; `p` is aligned to 8.
__device__ __forceinline__ uint64_t load_8(const void* p) { return *static_cast<const uint64_t*>(p); }

/// Makes the compiler treat the value as new: values derived from it are computed again instead of kept in registers.
__device__ __forceinline__ void make_again(Words& value) {
  asm volatile("" : "+r"(value.word[0]), "+r"(value.word[1]), "+r"(value.word[2]), "+r"(value.word[3]));
}

__device__ __forceinline__ void make_again(int& value) { asm volatile("" : "+r"(value)); }

/// Two floats in one access of 8 bytes; `p` is aligned to 8.
__device__ __forceinline__ void load_pair(const float* p, float& low, float& high) {
  const float2 pair = *reinterpret_cast<const float2*>(p);
  low = pair.x, high = pair.y;
}
__device__ __forceinline__ void store_pair(float* p, float low, float high) {
  *reinterpret_cast<float2*>(p) = make_float2(low, high);
}

/// `low` and `high` in the halves of a register, rounded to bfloat16 (to nearest, ties to even).
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// 2^x to about 2 ulp.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x to 1 ulp; 0 for infinity.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The nanoseconds of a clock that all multiprocessors share. Its last digits may not change for a microsecond.
__device__ __forceinline__ uint64_t global_timer_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}
/// Reads a word that the host may be writing. It is read from memory every time.
__device__ __forceinline__ uint32_t load_of_host(const uint32_t* p) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}
/// Yields the scheduler to other warps for about this time.
__device__ __forceinline__ void pause_ns(uint32_t ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

/// Waits until `p`, a word that other blocks write, is `value`. Everything that they wrote before is visible
/// afterwards.
__device__ __forceinline__ void wait_until(const uint32_t* p, uint32_t value) {
  uint32_t now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(p) : "memory");
  } while (now != value);
}
/// Writes `value`. Blocks that wait for it see what this thread, and threads that it waited for, wrote before.
__device__ __forceinline__ void store_release(uint32_t* p, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Loads four 8x8 matrices of 16-bit elements. Lane l passes the address of row l % 8 of matrix l / 8. Register i of
/// lane l receives row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1, of matrix i.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&matrix)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
               : "r"(shared_address(row))
               : "memory");
}

/// As above, with every matrix transposed.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&matrix)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
               : "r"(shared_address(row))
               : "memory");
}

/// d[16x8] += a[16x16] b[16x8] with bfloat16 operands and float sums. Lane l has, with g = l / 4 and c = l % 4:
///   a: {row g, columns 2c, 2c+1}, {row g+8, same}, {row g, columns 2c+8, 2c+9}, {row g+8, same}
///   b: {rows 2c, 2c+1 of column g}, {rows 2c+8, 2c+9};   d: row g columns 2c, 2c+1, then row g+8
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Starts copying 16 bytes to shared memory, or zeros where `valid` is false (`from` must still be an address).
__device__ __forceinline__ void copy_async_16(void* shared, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `kPending` of the committed groups of this thread are in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace slipstream::kernels::ptx
