// SPDX-License-Identifier: Apache-2.0
#pragma once
// Device code of counter-based masks: Philox4x32-10 as in engine/base/philox.h, and positions as in ContextChunks.

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/base/context_chunks.h"

namespace slipstream::kernels {

/// Replaces the counter by its words.
__device__ __forceinline__ void philox_words(uint32_t (&counter)[4], uint64_t key) {
  auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{0xD2511F53u} * counter[0], q = uint64_t{0xCD9E8D57u} * counter[2];
    counter[0] = static_cast<uint32_t>(q >> 32) ^ counter[1] ^ low;
    counter[2] = static_cast<uint32_t>(p >> 32) ^ counter[3] ^ high;
    counter[1] = static_cast<uint32_t>(q);
    counter[3] = static_cast<uint32_t>(p);
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
}

/// The positions of a rank's tokens in whole sequences.
struct Positions {
  int64_t chunk_tokens = 0, early = 0, late = 0;

  Positions() = default;
  explicit Positions(const ContextChunks& chunks)
      : chunk_tokens(chunks.chunk_tokens()), early(chunks.begin(0)), late(chunks.begin(1)) {}
  __device__ __forceinline__ uint32_t of(int64_t token) const {
    return static_cast<uint32_t>(token < chunk_tokens ? early + token : late + token - chunk_tokens);
  }
  /// The number of the rank's tokens before a position, if its late chunk had no end.
  __device__ __forceinline__ int64_t before(int64_t position) const {
    const int64_t in_early = position - early, in_late = position - late;
    return (in_early < 0 ? 0 : in_early < chunk_tokens ? in_early : chunk_tokens) + (in_late < 0 ? 0 : in_late);
  }
};

}  // namespace slipstream::kernels
