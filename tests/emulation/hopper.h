// SPDX-License-Identifier: Apache-2.0
#pragma once
// The emulated counterpart of kernels/cuda/hopper.h, with the layouts and rules of the PTX manual (ISA 8.0 and later,
// sections on mbarrier, cp.async.bulk.tensor and wgmma).

#include <cuda_runtime.h>
#include <ptx.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cuda/tensor_map.h"
#include "tests/emulation/asynchronous.h"

#define SLIP_DYNAMIC_SHARED_1024(name)                                   \
  unsigned char* const name = ::slipstream::emulation::dynamic_shared(); \
  ::slipstream::kernels::hopper::require_aligned_1024(name)

namespace slipstream::kernels::hopper {

constexpr bool kDeviceCode = true;

inline void require_aligned_1024(const void* shared, SLIP_HERE) { emulation::require_aligned_1024(shared, here); }

inline void barrier_init(Barrier* barrier, int arrivals, SLIP_HERE) {
  emulation::barrier_init(barrier, arrivals, here);
}
inline void barrier_init_fence(SLIP_HERE) { emulation::barrier_init_fence(here); }
inline void barrier_arrive(Barrier* barrier, SLIP_HERE) { emulation::barrier_arrive(barrier, here); }
inline void barrier_arrive_expect(Barrier* barrier, uint32_t bytes, SLIP_HERE) {
  emulation::barrier_arrive_expect(barrier, bytes, here);
}
inline void barrier_wait(Barrier* barrier, int parity, SLIP_HERE) { emulation::barrier_wait(barrier, parity, here); }
inline void named_barrier_sync(int id, int threads, SLIP_HERE) { emulation::named_barrier_sync(id, threads, here); }
inline void named_barrier_arrive(int id, int threads, SLIP_HERE) { emulation::named_barrier_arrive(id, threads, here); }
inline void fence_async(SLIP_HERE) { emulation::fence_async(here); }

inline void tensor_map_prefetch(const TensorMap&) {}
template <int kRank>
void tma_load(void* shared, const TensorMap& map, Barrier* barrier, int c0, int c1, int c2 = 0, int c3 = 0, int c4 = 0,
              SLIP_HERE) {
  static_assert(kRank >= 2 && kRank <= 5);
  emulation::tma_load(kRank, shared, map, barrier, {c0, c1, c2, c3, c4}, here);
}
template <int kRank>
void tma_store(const TensorMap& map, const void* shared, int c0, int c1, int c2 = 0, int c3 = 0, int c4 = 0,
               SLIP_HERE) {
  static_assert(kRank >= 2 && kRank <= 5);
  emulation::tma_store(kRank, map, shared, {c0, c1, c2, c3, c4}, here);
}
inline void tma_store_commit(SLIP_HERE) { emulation::tma_store_commit(here); }
template <int kPending>
void tma_store_wait_read(SLIP_HERE) {
  emulation::tma_store_wait_read(kPending, here);
}
template <int kPending>
void tma_store_wait(SLIP_HERE) {
  emulation::tma_store_wait(kPending, here);
}

/// The registers of one thread, which wgmma and other instructions must not access at the same time.
template <int kN>
struct Accumulator {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  /// An index with its source location, as operator[] takes no second argument.
  struct Index {
    Index(int i_, const std::source_location& at_ = std::source_location::current()) : i(i_), at(at_) {}  // NOLINT
    int i;
    std::source_location at;
  };
  Accumulator() { std::fill(values, values + kN / 2, std::numeric_limits<float>::quiet_NaN()); }
  Accumulator(const Accumulator&) = delete;
  Accumulator& operator=(const Accumulator&) = delete;
  float& operator[](Index index) {
    emulation::sums_access(state, index.i, kN / 2, index.at);
    return values[index.i];
  }
  float operator[](Index index) const {
    emulation::sums_access(state, index.i, kN / 2, index.at);
    return values[index.i];
  }

  float values[kN / 2];
  mutable emulation::SumsState state;
};

inline uint64_t matrix_descriptor(const void* shared, uint32_t leading_bytes, uint32_t stride_bytes, Swizzle swizzle,
                                  SLIP_HERE) {
  return descriptor_of(emulation::descriptor_address(shared, leading_bytes, stride_bytes, here), leading_bytes,
                       stride_bytes, swizzle);
}

/// Accumulators and A fragments, or arrays of them, as arguments of wgmma_fence and wgmma_wait.
struct Registers {
  Registers() = default;
  template <typename T>
  requires(!std::is_same_v<T, Registers>) Registers(T& registers)  // NOLINT: implicit
      : all(&registers),
        visit([](void* of, const emulation::RegistersVisitor& visitor) { each(*static_cast<T*>(of), visitor); }) {}
  void* all = nullptr;
  void (*visit)(void* all, const emulation::RegistersVisitor& visitor) = nullptr;

 private:
  template <int kN>
  static void each(Accumulator<kN>& sums, const emulation::RegistersVisitor& visitor) {
    visitor.sums(sums.state);
  }
  template <int kCount>
  static void each(uint32_t (&a)[kCount], const emulation::RegistersVisitor& visitor) {
    static_assert(kCount % 4 == 0);
    for (int i = 0; i < kCount; i += 4) visitor.fragment(a + i);
  }
  template <typename T, int kCount>
  static void each(T (&arrays)[kCount], const emulation::RegistersVisitor& visitor) {
    for (T& one : arrays) each(one, visitor);
  }
};

inline void wgmma_fence(Registers a = {}, Registers b = {}, Registers c = {}, Registers d = {}, SLIP_HERE) {
  const emulation::RegistersVisitor visitor = emulation::wgmma_fence(here);
  for (const Registers& all : {a, b, c, d})
    if (all.visit) all.visit(all.all, visitor);
}
template <typename... Sums>
void wgmma_pin(Sums&...) {}
inline void wgmma_commit(SLIP_HERE) { emulation::wgmma_commit(here); }
template <int kPending>
void wgmma_wait(Registers a = {}, Registers b = {}, Registers c = {}, Registers d = {}, SLIP_HERE) {
  const emulation::RegistersVisitor visitor = emulation::wgmma_wait(kPending, here);
  for (const Registers& all : {a, b, c, d})
    if (all.visit) all.visit(all.all, visitor);
}

template <int kN, Major kMajorA, Major kMajorB>
void wgmma(Accumulator<kN>& sums, uint64_t a_shared, uint64_t b_shared, bool accumulate, SLIP_HERE) {
  emulation::wgmma({.columns = kN,
                    .major_a = kMajorA,
                    .major_b = kMajorB,
                    .a = a_shared,
                    .b = b_shared,
                    .fragment = nullptr,
                    .sums = sums.values,
                    .state = &sums.state,
                    .accumulate = accumulate},
                   here);
}
template <int kN, Major kMajorB>
void wgmma_registers(Accumulator<kN>& sums, const uint32_t (&a)[4], uint64_t b_shared, bool accumulate, SLIP_HERE) {
  emulation::wgmma({.columns = kN,
                    .major_a = Major::k,
                    .major_b = kMajorB,
                    .a = 0,
                    .b = b_shared,
                    .fragment = a,
                    .sums = sums.values,
                    .state = &sums.state,
                    .accumulate = accumulate},
                   here);
}

inline void add_16(float* p, const float (&values)[4], SLIP_HERE) {
  emulation::vector_access(p, 16, true, here);
  for (int i = 0; i < 4; ++i) p[i] += values[i];
}

template <int kRegisters>
void registers_raise(SLIP_HERE) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  emulation::registers_change(kRegisters, true, here);
}
template <int kRegisters>
void registers_lower(SLIP_HERE) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  emulation::registers_change(kRegisters, false, here);
}

}  // namespace slipstream::kernels::hopper
