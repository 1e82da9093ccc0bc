// SPDX-License-Identifier: Apache-2.0
#pragma once
// Asynchronous parts of the emulated device, as of compute capability 9.0: barriers with phases, TMA, warpgroup
// products and the registers of warpgroups.
//
// Called by device code through hopper.h, from a fiber.

#include <array>
#include <cstdint>
#include <source_location>

#include "kernels/cuda/tensor_map.h"
#include "tests/emulation/emulator.h"

namespace slipstream::emulation {

using kernels::hopper::Major;
using kernels::hopper::Swizzle;
using kernels::hopper::TensorMap;

/// The trap of the device as an error.
void require_aligned_1024(const void* shared, const std::source_location& at);

void barrier_init(uint64_t* barrier, int arrivals, const std::source_location& at);
void barrier_init_fence(const std::source_location& at);
void barrier_arrive(uint64_t* barrier, const std::source_location& at);
void barrier_arrive_expect(uint64_t* barrier, uint32_t bytes, const std::source_location& at);
void barrier_wait(uint64_t* barrier, int parity, const std::source_location& at);
void named_barrier_sync(int id, int threads, const std::source_location& at);
void named_barrier_arrive(int id, int threads, const std::source_location& at);
void fence_async(const std::source_location& at);

using Coordinates = std::array<int, 5>;
void tma_load(int rank, void* shared, const TensorMap& map, uint64_t* barrier, const Coordinates& first,
              const std::source_location& at);
void tma_store(int rank, const TensorMap& map, const void* shared, const Coordinates& first,
               const std::source_location& at);
void tma_store_commit(const std::source_location& at);
void tma_store_wait_read(size_t pending, const std::source_location& at);
void tma_store_wait(size_t pending, const std::source_location& at);

/// The registers of an accumulator of one thread: those that instructions accessed since the last fence that names
/// them, and those that a product is writing.
struct SumsState {
  bool touched = false, in_flight = false;
  int32_t product = 0;  // of the warpgroup
  std::source_location touched_at, started_at;
};
void sums_access(SumsState& state, int i, int count, const std::source_location& at);

/// The effect of a fence or a wait on the registers that it names.
struct RegistersVisitor {
  enum class Operation { none, fence, wait } operation;
  std::source_location at;
  void sums(SumsState& state) const;
  void fragment(const uint32_t* a) const;
};
RegistersVisitor wgmma_fence(const std::source_location& at);
void wgmma_commit(const std::source_location& at);
RegistersVisitor wgmma_wait(size_t pending, const std::source_location& at);

/// One thread's part of a product.
struct Product {
  int columns;
  Major major_a, major_b;
  uint64_t a, b;             // descriptors
  const uint32_t* fragment;  // A in registers, or null
  float* sums;
  SumsState* state;
  bool accumulate;
};
void wgmma(const Product& product, const std::source_location& at);
/// The address of `shared` for a descriptor.
uint32_t descriptor_address(const void* shared, uint32_t leading_bytes, uint32_t stride_bytes,
                            const std::source_location& at);

void registers_change(int registers, bool raise, const std::source_location& at);

}  // namespace slipstream::emulation
