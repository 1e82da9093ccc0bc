// SPDX-License-Identifier: Apache-2.0
#pragma once
// Vectors of float for the *_cpu.cpp files: one width per instruction set, bf16 as storage, exp and tanh.
//
// Only files that the build compiles once per set, with -DSLIP_ISA=isa_avx2 (and so on) and -DSLIP_VECTOR_BYTES,
// include it. It uses the vector extensions of GCC and Clang, so that arithmetic is written a + b * c.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "engine/base/dtype.h"

namespace slipstream::kernels::SLIP_ISA {

constexpr int kLanes = SLIP_VECTOR_BYTES / 4;
typedef float Vf __attribute__((vector_size(SLIP_VECTOR_BYTES)));
typedef int32_t Vi __attribute__((vector_size(SLIP_VECTOR_BYTES)));
typedef uint32_t Vu __attribute__((vector_size(SLIP_VECTOR_BYTES)));
typedef uint16_t Vh __attribute__((vector_size(SLIP_VECTOR_BYTES / 2)));

inline Vf splat(float value) {
  return value - Vf{};
}  // x - 0 is x for every x, so no subtraction remains; -0 + 0 is not -0

inline Vf load(const float* p) {
  Vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vf v) { std::memcpy(p, &v, sizeof v); }

inline Vf load(const bfloat16* p) {
  Vh half;
  std::memcpy(&half, p, sizeof half);
  // GCC 12 converts in halves. In the forms without a mask it warns of an uninitialized value.
#if SLIP_VECTOR_BYTES == 64 && defined(__AVX512F__)
  const Vu wide = reinterpret_cast<Vu>(_mm512_maskz_cvtepu16_epi32(__mmask16(0xffff), reinterpret_cast<__m256i>(half)))
                  << 16;
#elif SLIP_VECTOR_BYTES == 32 && defined(__AVX2__)
  const Vu wide = reinterpret_cast<Vu>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(half))) << 16;
#else
  const Vu wide = __builtin_convertvector(half, Vu) << 16;
#endif
  return reinterpret_cast<Vf>(wide);
}
/// Rounds to nearest, ties to even. NaN stays NaN.
inline void store(bfloat16* p, Vf v) {
  const Vu u = reinterpret_cast<Vu>(v);
  const Vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const Vu nan = ((u >> 16) | 0x40u);
  const Vu is_nan = reinterpret_cast<Vu>((u & 0x7fffffffu) > 0x7f800000u);
  const Vu chosen = (rounded & ~is_nan) | (nan & is_nan);
#if SLIP_VECTOR_BYTES == 64 && defined(__AVX512F__)
  const Vh half =
      reinterpret_cast<Vh>(_mm512_maskz_cvtepi32_epi16(__mmask16(0xffff), reinterpret_cast<__m512i>(chosen)));
#elif SLIP_VECTOR_BYTES == 32 && defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32(reinterpret_cast<__m256i>(chosen), reinterpret_cast<__m256i>(chosen));
  const Vh half = reinterpret_cast<Vh>(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
  const Vh half = __builtin_convertvector(chosen, Vh);
#endif
  std::memcpy(static_cast<void*>(p), &half, sizeof half);
}

/// Loads the first `count` (1 to kLanes) elements; the other lanes are 0.
template <typename T>
inline Vf load_part(const T* p, int64_t count) {
  T lanes[kLanes] = {};
  std::memcpy(static_cast<void*>(lanes), p, static_cast<size_t>(count) * sizeof(T));
  return load(lanes);
}
template <typename T>
inline void store_part(T* p, Vf v, int64_t count) {
  T lanes[kLanes];
  store(lanes, v);
  std::memcpy(static_cast<void*>(p), lanes, static_cast<size_t>(count) * sizeof(T));
}

/// Returns b where a or b is NaN. GCC does not emit the single instruction for a > b ? a : b.
#if SLIP_VECTOR_BYTES == 32 && defined(__AVX2__)
inline Vf max(Vf a, Vf b) { return _mm256_max_ps(a, b); }
inline Vf min(Vf a, Vf b) { return _mm256_min_ps(a, b); }
#else
inline Vf max(Vf a, Vf b) { return a > b ? a : b; }
inline Vf min(Vf a, Vf b) { return a < b ? a : b; }
#endif

/// Exchanges the lanes of `a` that have bit kStep with those of `b` that lack it.
template <int kStep, int... kLane>
inline void exchange(Vf& a, Vf& b, std::integer_sequence<int, kLane...>) {
  const Vf low = __builtin_shufflevector(a, b, ((kLane & kStep) ? kLanes + kLane - kStep : kLane)...);
  b = __builtin_shufflevector(a, b, ((kLane & kStep) ? kLanes + kLane : kLane + kStep)...);
  a = low;
}
template <int kStep>
inline void exchange(Vf& a, Vf& b) {
  exchange<kStep>(a, b, std::make_integer_sequence<int, kLanes>());
}

/// Lane i of the result is lane (i + kBy) mod kLanes of v.
template <int kBy, int... kLane>
inline Vf rotated(Vf v, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(v, v, ((kLane + kBy) % kLanes)...);
}
template <int kBy>
inline Vf rotated(Vf v) {
  return rotated<kBy>(v, std::make_integer_sequence<int, kLanes>());
}
/// The sum of the lanes, pairwise, in the same order in every call.
template <int kBy = kLanes / 2>
inline float sum(Vf v) {
  if constexpr (kBy == 0)
    return v[0];
  else
    return sum<kBy / 2>(v + rotated<kBy>(v));
}
/// sum(a), sum(b), sum(c) and sum(d) with the same bits, by half as many instructions.
inline void sums(Vf a, Vf b, Vf c, Vf d, float (&out)[4]) {
  exchange<kLanes / 2>(a, c);
  exchange<kLanes / 2>(b, d);
  Vf ac = a + c, bd = b + d;
  exchange<kLanes / 4>(ac, bd);
  Vf all = ac + bd;
  if constexpr (kLanes > 8) all += rotated<2>(all);
  if constexpr (kLanes > 4) all += rotated<1>(all);
  for (int i = 0; i < 4; ++i) out[i] = all[i * kLanes / 4];
}
template <int kBy = kLanes / 2>
inline float max(Vf v) {
  if constexpr (kBy == 0)
    return v[0];
  else
    return max<kBy / 2>(max(v, rotated<kBy>(v)));
}

/// e^x to about 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, and a degree-6 polynomial for e^r, scaled by 2^n. Returns 0
/// below -87.3, infinity above 88.7, and NaN for NaN.
inline Vf exp(Vf x) {
  const Vf clamped = min(max(x, splat(-87.33f)), splat(88.72f));
  const Vf shifted = clamped * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const Vf n = shifted - 12582912.0f;
  const Vf r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two pieces
  Vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n has two factors, so that n = 128 does not overflow before the product does.
  const Vi whole = __builtin_convertvector(n, Vi);
  const Vi half = whole >> 1;
  const Vi a = (half + 127) << 23;
  const Vi b = (whole - half + 127) << 23;
  const Vf value = p * reinterpret_cast<Vf>(a) * reinterpret_cast<Vf>(b);
  const Vf low = x < splat(-87.33f) ? Vf{} : value;
  const Vf high = x > splat(88.72f) ? splat(__builtin_inff()) : low;
  return x == x ? high : x;
}

/// e^x to about 2 ulp for x <= 88, and NaN for NaN. Below -87.3 it stays at 1e-38; above 88 it has any value, without a
/// trap. It needs half the instructions of exp, because it has no upper end and 2^n comes from the low bits of the
/// shifted sum.
inline Vf exp_bounded(Vf x) {
  const Vf bounded = max(splat(-87.33f), x);  // in this order NaN is kept
  const Vf shifted = bounded * 1.44269504088896341f + 12582912.0f;
  const Vf n = shifted - 12582912.0f;
  const Vf r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  Vf p = splat(1.3981999507e-3f) + r * 1.9875691500e-4f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const Vi power = (reinterpret_cast<Vi>(shifted) + 127) << 23;
  return p * reinterpret_cast<Vf>(power);
}

/// tanh(x) = 1 - 2 / (e^2x + 1), with the odd series near 0 where that form would cancel.
inline Vf tanh(Vf x) {
  const Vf square = x * x;
  Vf series = splat(-5.70498872745e-3f);  // Cephes tanhf
  series = series * square + 2.06390887954e-2f;
  series = series * square - 5.37397155531e-2f;
  series = series * square + 1.33314422036e-1f;
  series = series * square - 3.33332819422e-1f;
  series = series * square * x + x;
  const Vf bounded = min(max(x, splat(-10.0f)), splat(10.0f));
  const Vf direct = 1.0f - 2.0f / (exp(bounded * 2.0f) + 1.0f);
  const Vf small = square < splat(0.390625f) ? series : direct;
  return x == x ? small : x;
}

}  // namespace slipstream::kernels::SLIP_ISA
