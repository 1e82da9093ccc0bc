// SPDX-License-Identifier: Apache-2.0
// The choice of tokens on the CPU, which sorts and selects among the likely tokens only.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/base/philox.h"
#include "kernels/common/vectors.h"
#include "kernels/sample/sample.h"
#include "kernels/sample/sample_rule.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

/// The highest logit, or NaN unless all logits are finite.
float highest_of(const float* logits, int64_t count) {
  Vf tops = splat(std::numeric_limits<float>::lowest()), zeros = {};  // NaN after an infinity or NaN
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vf some = load(logits + i);
    tops = max(tops, some);
    zeros += some * 0.0f;
  }
  float top = max(tops), zero = sum(zeros);
  for (; i < count; ++i) {
    top = std::max(top, logits[i]);
    zero += logits[i] * 0.0f;
  }
  return zero == 0 ? top : NAN;
}

/// The exponents up to a bound that grows until `enough` holds for them, in the order of the tokens.
template <typename Enough>
std::vector<int32_t> likely(const std::vector<uint32_t>& exponents, const Enough& enough) {
  std::vector<int32_t> tokens;
  for (uint32_t bound = 4 * kHalving;; bound = std::min(2 * bound, kNoWeight)) {
    tokens.clear();
    for (size_t i = 0; i < exponents.size(); ++i)
      if (exponents[i] < bound) tokens.push_back(static_cast<int32_t>(i));
    if (bound == kNoWeight || enough(tokens)) return tokens;
  }
}

void keep_top_k(std::vector<uint32_t>& exponents, uint64_t k) {
  std::vector<int32_t> tokens = likely(exponents, [&](const auto& some) { return some.size() >= k; });
  if (tokens.size() < k) return;  // the others have no weight
  const auto kth = tokens.begin() + static_cast<std::ptrdiff_t>(k - 1);
  const auto less = [&](int32_t a, int32_t b) {
    return exponents[static_cast<size_t>(a)] < exponents[static_cast<size_t>(b)];
  };
  std::nth_element(tokens.begin(), kth, tokens.end(), less);
  const uint32_t most = exponents[static_cast<size_t>(*kth)];
  for (uint32_t& exponent : exponents) exponent = exponent <= most ? exponent : kNoWeight;
}

uint64_t sum_of(const std::vector<uint32_t>& exponents, const std::vector<int32_t>& tokens) {
  uint64_t sum = 0;
  for (const int32_t i : tokens) sum += weight_of(exponents[static_cast<size_t>(i)]);
  return sum;
}

void keep_top_p(std::vector<uint32_t>& exponents, uint64_t share) {
  uint64_t total = 0;
  for (const uint32_t exponent : exponents) total += weight_of(exponent);
  const uint64_t enough = std::max<uint64_t>(1, high_product(total, share));
  std::vector<int32_t> tokens = likely(exponents, [&](const auto& some) { return sum_of(exponents, some) >= enough; });
  std::stable_sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) {
    return exponents[static_cast<size_t>(a)] < exponents[static_cast<size_t>(b)];
  });
  std::vector<std::pair<int32_t, uint32_t>> kept;
  uint64_t sum = 0;
  for (const int32_t i : tokens) {
    if (sum >= enough) break;
    const uint32_t exponent = exponents[static_cast<size_t>(i)];
    sum += weight_of(exponent);
    kept.emplace_back(i, exponent);
  }
  std::fill(exponents.begin(), exponents.end(), kNoWeight);
  for (const auto& [i, exponent] : kept) exponents[static_cast<size_t>(i)] = exponent;
}

/// The token at which the sum of the weights passes its share. The search goes block by block, and then within one
/// block.
int32_t drawn(const std::vector<uint32_t>& exponents, uint64_t random) {
  constexpr size_t kBlock = 256;
  std::vector<uint64_t> sums;
  for (size_t at = 0; at < exponents.size(); at += kBlock) {
    uint64_t sum = 0;
    for (size_t i = at; i < std::min(at + kBlock, exponents.size()); ++i) sum += weight_of(exponents[i]);
    sums.push_back(sum);
  }
  uint64_t target = high_product(std::accumulate(sums.begin(), sums.end(), uint64_t{0}), random);
  size_t block = 0;
  while (target >= sums[block]) target -= sums[block++];
  size_t i = block * kBlock;
  for (uint64_t weight = weight_of(exponents[i]); target >= weight; weight = weight_of(exponents[++i]))
    target -= weight;
  return static_cast<int32_t>(i);
}

}  // namespace

int32_t choose_cpu(const Sample& args, int64_t row, uint64_t random) {
  const SamplingNumbers numbers = numbers_of(args);
  float* const logits = args.logits + row * args.stride;
  // This comes before holes are filled, because an overflow may be in a hole, too.
  if (std::isnan(highest_of(logits, args.vocab))) return kNotFinite;
  if (numbers.penalty != 1) {
    const uint32_t* const seen = args.seen + args.sequences[row] * token_set_words(args.vocab);
    for (int64_t i = 0; i < args.vocab; ++i)
      if (is_in(seen, i)) logits[i] = penalised(logits[i], numbers.penalty);
  }
  for (int64_t i = 0; args.holes != nullptr && i < args.vocab; ++i)
    if (is_in(args.holes, i)) logits[i] = std::numeric_limits<float>::lowest();
  const float top = highest_of(logits, args.vocab);
  if (numbers.factor == 0) return static_cast<int32_t>(std::find(logits, logits + args.vocab, top) - logits);
  std::vector<uint32_t> exponents(static_cast<size_t>(args.vocab));
  for (size_t i = 0; i < exponents.size(); ++i) exponents[i] = exponent_of(top - logits[i], numbers.factor);
  if (numbers.top_k > 0) keep_top_k(exponents, numbers.top_k);
  if (numbers.top_p > 0) keep_top_p(exponents, numbers.top_p);
  for (uint32_t& exponent : exponents)
    if (numbers.min_weight > 0 && weight_of(exponent) < numbers.min_weight) exponent = kNoWeight;
  return drawn(exponents, random);
}

void sample_cpu(LaunchContext& context, const Sample& args) {
  const Philox random = Philox::with_key(args.key);
  context.parallel_for(args.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      TextState& text = args.text[args.sequences[r]];
      text.id = args.chosen[r] = choose_cpu(args, r, random.bits(uint64_t{text.text} << 32 | text.draws));
      ++text.token;
      ++text.draws;
      if (args.options.repetition_penalty != 1 && text.id >= 0)
        args.seen[args.sequences[r] * token_set_words(args.vocab) + text.id / 32] |= 1u << text.id % 32;
    }
  });
}

}  // namespace slipstream::kernels::SLIP_ISA
