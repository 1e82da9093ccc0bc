// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choice of the next token from logits.

#include <cstdint>
#include <span>

namespace slipstream::runtime {

struct SamplingOptions {
  double temperature = 0.8;       // 0: always the most likely token
  int top_k = 0;                  // sample among the most likely tokens; 0: all
  double top_p = 1;               // among the fewest tokens whose probabilities sum to this; 1: all
  double min_p = 0;               // among tokens at least this times as likely as the most likely; 0: all
  double repetition_penalty = 1;  // divides positive logits of earlier tokens, multiplies negative ones; 1: none
};

/// Pure. Throws: ConfigError naming the option that is out of range.
void check_sampling(const SamplingOptions& options);

/// The next token; `before` are the tokens that the penalty concerns, `uniform` a random number in [0, 1). The penalty
/// comes first, then temperature, top_k, top_p and min_p, each among the tokens that the one before left. Overwrites
/// the logits, which are finite.
int32_t sample(std::span<float> logits, const SamplingOptions& options, std::span<const int32_t> before,
               double uniform);

}  // namespace slipstream::runtime
