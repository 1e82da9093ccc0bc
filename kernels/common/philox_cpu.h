// SPDX-License-Identifier: Apache-2.0
#pragma once
// Philox4x32-10 (engine/base/philox.h) of many counters at once. Only *_cpu.cpp files include it.

#include <cstdint>

namespace slipstream::kernels::SLIP_ISA {

/// Replaces the counters {a[i], b[i], c[i], d[i]} by their words. Each round is a loop over all counters, so that the
/// compiler makes vectors.
template <int kCount>
inline void philox_words(uint32_t (&a)[kCount], uint32_t (&b)[kCount], uint32_t (&c)[kCount], uint32_t (&d)[kCount],
                         uint64_t key) {
  uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kCount; ++i) {
      const uint64_t p = uint64_t{0xD2511F53u} * a[i], q = uint64_t{0xCD9E8D57u} * c[i];
      a[i] = static_cast<uint32_t>(q >> 32) ^ b[i] ^ low;
      c[i] = static_cast<uint32_t>(p >> 32) ^ d[i] ^ high;
      b[i] = static_cast<uint32_t>(q);
      d[i] = static_cast<uint32_t>(p);
    }
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
}

}  // namespace slipstream::kernels::SLIP_ISA
