// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of CUDA's language and runtime that our kernels use, on the emulator.
//
// The emulated build finds it before the toolkit's header of the same name, so the same .cu files compile with g++.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/emulation/emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
// A static is the running block's: grid.cpp exchanges its contents when blocks take turns. Only Shared<T> and the ptx
// twins check accesses.
#define __shared__ static

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
struct cudaDeviceProp {
  char name[256];
};
struct EmulatedEvent;
using cudaEvent_t = EmulatedEvent*;
// tests/emulation/runtime.cpp. Times of events are virtual: those of products and of the threads of kernels.
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaMalloc(void** block, size_t size_bytes);
cudaError_t cudaFree(void* block);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
// A function of the driver, of cuda.h.
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1 };
constexpr unsigned long long cudaEnableDefault = 0;
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result);
inline cudaError_t cudaMemsetAsync(void* p, int value, size_t size_bytes, cudaStream_t stream) {
  slipstream::emulation::enqueue(stream, [=] { std::memset(p, value, size_bytes); });
  return cudaSuccess;
}

using std::max;
using std::min;

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

#define SLIP_HERE const std::source_location& here = std::source_location::current()

inline void __syncthreads(SLIP_HERE) { slipstream::emulation::block_barrier(here); }
inline void __syncwarp(unsigned mask = 0xffffffffu, SLIP_HERE) { slipstream::emulation::warp_barrier(mask, here); }

namespace slipstream::emulation {
template <typename T>
T from_lane(const Lane* lanes, int lane) {
  T value;
  std::memcpy(&value, lanes[lane].bytes, sizeof value);
  return value;
}
template <typename T, typename Source>
T shuffle(const char* operation, unsigned mask, T value, int width, Source source, const std::source_location& here) {
  static_assert(sizeof(T) <= kSlotBytes);
  const Lane* lanes = warp_exchange(operation, mask, &value, sizeof value, here);
  const int base = lane() / width * width, from = source(lane() - base);
  if (from < 0 || from >= width) return value;
  if (base + from >= warp_lanes())
    fail(source::kShuffle,
         std::string(operation) + " reads lane " + std::to_string(base + from) + ", which the block does not have");
  return from_lane<T>(lanes, base + from);
}
}  // namespace slipstream::emulation

template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, SLIP_HERE) {
  return slipstream::emulation::shuffle(
      "__shfl_sync", mask, value, width, [&](int) { return from & (width - 1); }, here);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, SLIP_HERE) {
  return slipstream::emulation::shuffle(
      "__shfl_xor_sync", mask, value, width, [&](int l) { return l ^ bits; }, here);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SLIP_HERE) {
  return slipstream::emulation::shuffle(
      "__shfl_down_sync", mask, value, width, [&](int l) { return l + static_cast<int>(delta); }, here);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SLIP_HERE) {
  return slipstream::emulation::shuffle(
      "__shfl_up_sync", mask, value, width, [&](int l) { return l - static_cast<int>(delta); }, here);
}
unsigned __ballot_sync(unsigned mask, int predicate, SLIP_HERE);
inline int __any_sync(unsigned mask, int predicate, SLIP_HERE) { return __ballot_sync(mask, predicate, here) != 0; }
inline int __all_sync(unsigned mask, int predicate, SLIP_HERE) { return __ballot_sync(mask, !predicate, here) == 0; }

// Threads run one at a time: a plain read and write are atomic.
template <typename T>
T atomicAdd(T* p, T value) {
  const T old = *p;
  *p = old + value;
  return old;
}
template <typename T>
T atomicMax(T* p, T value) {
  const T old = *p;
  *p = old < value ? value : old;
  return old;
}
template <typename T>
T atomicOr(T* p, T value) {
  const T old = *p;
  *p = old | value;
  return old;
}
template <typename T>
T atomicCAS(T* p, T compare, T value) {
  const T old = *p;
  if (old == compare) *p = value;
  return old;
}
