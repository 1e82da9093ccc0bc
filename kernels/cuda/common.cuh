// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared device code: packs of 16 bytes, conversions, and reductions over a warp and a block.

#include <launch.h>
#include <ptx.h>
#include <shared.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace slipstream::kernels {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// The number of elements in 16 bytes.
template <typename T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(bfloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

template <typename T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float value) {
  bfloat16 result;
  result.bits = static_cast<uint16_t>(ptx::bf16_pair(value, 0.0f));
  return result;
}

/// `value` after it was stored as T and loaded again.
template <typename T>
__device__ __forceinline__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

__device__ __forceinline__ void unpack(const ptx::Words& words, float* to, float) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(words.word[i]);
}
__device__ __forceinline__ void unpack(const ptx::Words& words, float* to, bfloat16) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words.word[i] << 16);
    to[2 * i + 1] = __uint_as_float(words.word[i] & 0xffff0000u);
  }
}
__device__ __forceinline__ ptx::Words packed(const float* from, float) {
  ptx::Words words;
#pragma unroll
  for (int i = 0; i < 4; ++i) words.word[i] = __float_as_uint(from[i]);
  return words;
}
__device__ __forceinline__ ptx::Words packed(const float* from, bfloat16) {
  ptx::Words words;
#pragma unroll
  for (int i = 0; i < 4; ++i) words.word[i] = ptx::bf16_pair(from[2 * i], from[2 * i + 1]);
  return words;
}

/// values = p[0..kElems), with zeros from `count` on. With `kAligned`, `p` is a multiple of 16 bytes and whole packs
/// are loaded at once.
template <bool kAligned, int kElems, typename T>
__device__ __forceinline__ void load_floats(const T* p, int64_t count, float (&values)[kElems]) {
  static_assert(kElems % kPack<T> == 0);
  if (kAligned && count >= kElems) {
#pragma unroll
    for (int i = 0; i < kElems; i += kPack<T>) unpack(ptx::load_16(p + i), values + i, T{});
  } else {
#pragma unroll
    for (int i = 0; i < kElems; ++i) values[i] = i < count ? to_float(p[i]) : 0.0f;
  }
}

/// p[0..min(count, kElems)) = values, rounded to T.
template <bool kAligned, int kElems, typename T>
__device__ __forceinline__ void store_floats(T* p, int64_t count, const float (&values)[kElems]) {
  static_assert(kElems % kPack<T> == 0);
  if (kAligned && count >= kElems) {
#pragma unroll
    for (int i = 0; i < kElems; i += kPack<T>) ptx::store_16(p + i, packed(values + i, T{}));
  } else {
#pragma unroll
    for (int i = 0; i < kElems; ++i)
      if (i < count) p[i] = from_float<T>(values[i]);
  }
}

/// The sum over the warp, with the same bits in every lane.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kWholeWarp, value, bits);
  return value;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// --- host side

inline int64_t blocks_for(int64_t count, int64_t per_block) { return (count + per_block - 1) / per_block; }

/// Are all pointers multiples of 16 bytes? Null counts as aligned.
template <typename... Pointers>
bool all_aligned(const Pointers*... pointers) {
  return (... && (reinterpret_cast<uintptr_t>(pointers) % 16 == 0));
}

/// Calls body(T{}) with the element type.
template <typename Body>
void for_dtype(DType dtype, const Body& body) {
  dtype == DType::f32 ? body(float{}) : body(bfloat16{});
}
/// Calls body(std::bool_constant) so that a flag becomes a template argument.
template <typename Body>
void for_flag(bool flag, const Body& body) {
  flag ? body(std::true_type{}) : body(std::false_type{});
}

}  // namespace slipstream::kernels
