// SPDX-License-Identifier: Apache-2.0
#pragma once
// The arithmetic of the choice of a token, which is compiled for the host and for the GPU: one product of floats, then
// integers.

#include <cstdint>

#ifdef __CUDACC__
#define SLIP_ON_ANY_DEVICE __host__ __device__ __forceinline__
#else
#define SLIP_ON_ANY_DEVICE inline
#endif

namespace slipstream::kernels {

/// An exponent of a weight: 2^25 is a halving. From kNoWeight on, the weight is 0.
constexpr int kHalvingBits = 25;
constexpr uint32_t kHalving = 1u << kHalvingBits;
constexpr uint32_t kNoWeight = 41 * kHalving;
constexpr int kWeightBits = 40;  // of the largest weight

/// `below`: how far a logit is below the highest one; at least 0 and not NaN. The difference of the logits and this
/// product are rounded once each. No sum follows that a compiler could fuse with the product.
SLIP_ON_ANY_DEVICE uint32_t exponent_of(float below, float factor) {
  const float halvings = below * factor;
  return halvings < 41.0f ? static_cast<uint32_t>(static_cast<int32_t>(halvings * static_cast<float>(kHalving)))
                          : kNoWeight;
}

/// The product with x / 2^25; x is below 2^25.
SLIP_ON_ANY_DEVICE uint32_t share_of(uint32_t sum, uint32_t x) {
  return static_cast<uint32_t>(uint64_t{sum} * x >> kHalvingBits);
}

/// 2^40 2^-(exponent / 2^25). The polynomial interpolates 2^-x on [0, 1] at the nodes of Chebyshev and at both ends.
/// Its coefficients are multiplied by 2^32 and have alternating signs.
SLIP_ON_ANY_DEVICE uint64_t weight_of(uint32_t exponent) {
  const uint32_t x = exponent & (kHalving - 1);
  uint32_t sum = 0xb5b4;
  sum = 0x9a926 - share_of(sum, x);
  sum = 0x570b52 - share_of(sum, x);
  sum = 0x2763183 - share_of(sum, x);
  sum = 0xe357d17 - share_of(sum, x);
  sum = 0x3d7f7b6a - share_of(sum, x);
  sum = 0xb17217f6 - share_of(sum, x);
  const uint64_t power = (uint64_t{1} << 32) - share_of(sum, x);
  return power << (kWeightBits - 32) >> (exponent >> kHalvingBits);
}

/// The high 64 bits of a product.
SLIP_ON_ANY_DEVICE uint64_t high_product(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  return a1 * b1 + (middle >> 32) + ((a0 * b1 + (middle & 0xffffffffu)) >> 32);
}

/// The logit of a token that its text already contains.
SLIP_ON_ANY_DEVICE float penalised(float logit, double penalty) {
  constexpr double kMost = 3.4028234663852886e+38;  // the largest float
  const double less = logit > 0.0f ? logit / penalty : logit * penalty;
  return static_cast<float>(less > kMost ? kMost : less < -kMost ? -kMost : less);
}

SLIP_ON_ANY_DEVICE bool is_in(const uint32_t* tokens, int64_t i) { return (tokens[i / 32] >> i % 32 & 1) != 0; }

/// The options as the numbers that the choice uses.
struct SamplingNumbers {
  float factor = 0;         // 0: the highest logit
  uint64_t top_k = 0;       // 0: all
  uint64_t top_p = 0;       // of the sum of weights, times 2^64; 0: all
  uint64_t min_weight = 0;  // 0: all
  double penalty = 1;
  int64_t words = 0;  // of a set of tokens
};

}  // namespace slipstream::kernels
