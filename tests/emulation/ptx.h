// SPDX-License-Identifier: Apache-2.0
#pragma once
// The emulated counterpart of kernels/cuda/ptx.h, from the fragment layouts of the PTX manual (ISA 8.0, sections
// 9.7.8.25.3.1 and 9.7.13.4.8).
//
// An asynchronous copy is performed at its wait, not before, so a missing wait shows as a read of unwritten memory.

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/base/dtype.h"

namespace slipstream::kernels::ptx {

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

inline void make_again(Words&) {}

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

inline float exp2_approx(float x) { return std::exp2(x); }

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

namespace detail {
struct Copy {
  unsigned char* to;
  const void* from;
  bool valid;
  std::source_location at;
};
/// Copies of a thread that are not yet complete, by committed group; the last group is open.
struct Copies {
  int64_t launch = -1;
  uint3 block = {};
  std::vector<std::vector<Copy>> groups;
};
inline Copies& copies() {
  static std::vector<Copies> all(1024);
  Copies& mine = all[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
  if (mine.launch != emulation::launches() || std::memcmp(&mine.block, &blockIdx, sizeof blockIdx) != 0)
    mine = {emulation::launches(), blockIdx, std::vector<std::vector<Copy>>(1)};
  return mine;
}
inline void land(const Copy& copy) {
  emulation::shared_write(copy.to, 16, copy.at);
  if (copy.valid)
    std::memcpy(copy.to, copy.from, 16);
  else
    std::memset(copy.to, 0, 16);
}
}  // namespace detail

inline void copy_async_16(void* shared, const void* from, bool valid, SLIP_HERE) {
  if (!emulation::is_shared(shared)) emulation::fail("cp.async to an address that is not shared memory");
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0)
    emulation::fail("cp.async to an address that is not a multiple of 16");
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
    emulation::fail("cp.async from an address that is not a multiple of 16");
  detail::copies().groups.back().push_back({static_cast<unsigned char*>(shared), from, valid, here});
}
inline void copy_async_commit() { detail::copies().groups.emplace_back(); }
template <int kPending>
void copy_async_wait() {
  auto& groups = detail::copies().groups;
  while (groups.size() > kPending + 1) {
    for (const detail::Copy& copy : groups.front()) detail::land(copy);
    groups.erase(groups.begin());
  }
}

}  // namespace slipstream::kernels::ptx
