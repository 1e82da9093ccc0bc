// SPDX-License-Identifier: Apache-2.0
#pragma once
// The emulated counterpart of kernels/cuda/ptx.h, from the fragment layouts of the PTX manual (ISA 8.0, sections
// 9.7.8.25.3.1 and 9.7.13.4.8).

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "engine/base/dtype.h"

namespace slipstream::kernels::ptx {

inline void wait_for_earlier_kernels(SLIP_HERE) {
  emulation::wait_for_earlier_kernels("wait_for_earlier_kernels", here);
}
inline void after_earlier_kernels(SLIP_HERE) { emulation::wait_for_earlier_kernels("after_earlier_kernels", here); }

struct alignas(16) Words {
  uint32_t word[4];
};

inline Words load_16(const void* p, SLIP_HERE) {
  emulation::vector_access(p, 16, false, here);
  Words value;
  std::memcpy(&value, p, 16);
  return value;
}
inline void store_16(void* p, const Words& value, SLIP_HERE) {
  emulation::vector_access(p, 16, true, here);
  std::memcpy(p, &value, 16);
}

inline uint64_t load_8(const void* p, SLIP_HERE) {
  emulation::vector_access(p, 8, false, here);
  uint64_t value;
  std::memcpy(&value, p, 8);
  return value;
}

inline void make_again(Words&) {}
inline void make_again(int&) {}

inline void load_pair(const float* p, float& low, float& high, SLIP_HERE) {
  emulation::vector_access(p, 8, false, here);
  low = p[0], high = p[1];
}
inline void store_pair(float* p, float low, float high, SLIP_HERE) {
  emulation::vector_access(p, 8, true, here);
  p[0] = low, p[1] = high;
}

inline uint32_t bf16_pair(float low, float high) {
  return bfloat16(low).bits | static_cast<uint32_t>(bfloat16(high).bits) << 16;
}
inline float bf16_half(uint32_t pair, int half) { return std::bit_cast<float>(half ? pair & 0xffff0000u : pair << 16); }

inline uint64_t global_timer_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}
inline uint32_t load_of_host(const uint32_t* p) { return std::atomic_ref(*const_cast<uint32_t*>(p)).load(); }
inline void pause_ns(uint32_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

inline void wait_until(const uint32_t* p, uint32_t value, SLIP_HERE) { emulation::wait_until(p, value, here); }
inline void store_release(uint32_t* p, uint32_t value, SLIP_HERE) { emulation::store_release(p, value, here); }

inline float exp2_approx(float x) { return std::exp2(x); }
inline float reciprocal_approx(float x) { return 1.0f / x; }

namespace detail {
void load_matrix(uint32_t (&matrix)[4], const void* row, bool transposed, const std::source_location& here);
}  // namespace detail

inline void load_matrix_x4(uint32_t (&matrix)[4], const void* row, SLIP_HERE) {
  detail::load_matrix(matrix, row, false, here);
}
inline void load_matrix_x4_transposed(uint32_t (&matrix)[4], const void* row, SLIP_HERE) {
  detail::load_matrix(matrix, row, true, here);
}

void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, SLIP_HERE);

inline void copy_async_16(void* shared, const void* from, bool valid, SLIP_HERE) {
  emulation::copy_async(shared, from, valid, here);
}
inline void copy_async_commit(SLIP_HERE) { emulation::copy_commit(here); }
template <int kPending>
void copy_async_wait(SLIP_HERE) {
  emulation::copy_wait(kPending, here);
}

}  // namespace slipstream::kernels::ptx
