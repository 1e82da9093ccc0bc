// SPDX-License-Identifier: Apache-2.0
// The choice of tokens, by probabilities that a hand can compute.

#include "runtime/sampling.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::runtime;

namespace {

/// Logits of tokens with probabilities 4/10, 3/10, 2/10 and 1/10, in another order.
const std::vector<float> kLogits = {std::log(2.0f), std::log(4.0f), std::log(1.0f), std::log(3.0f)};

int32_t draw(std::vector<float> logits, const SamplingOptions& options, const std::vector<int32_t>& before,
             double uniform) {
  return sample(logits, options, before, uniform);
}

/// The share of each token among evenly spaced random numbers.
std::map<int32_t, double> shares(const SamplingOptions& options, const std::vector<int32_t>& before = {}) {
  constexpr int kDraws = 10000;
  std::map<int32_t, double> counts;
  for (int i = 0; i < kDraws; ++i) counts[draw(kLogits, options, before, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  return counts;
}

void check_shares(const SamplingOptions& options, const std::map<int32_t, double>& expected,
                  const std::vector<int32_t>& before = {}) {
  const std::map<int32_t, double> seen = shares(options, before);
  REQUIRE(seen.size() == expected.size());
  for (const auto& [id, share] : expected) {
    INFO("token " << id);
    REQUIRE(seen.count(id) == 1);
    CHECK(seen.at(id) == Approx(share).margin(2e-4));
  }
}

}  // namespace

TEST_CASE("sampling: tokens come with their probabilities, among those that the options leave", "[generate]") {
  check_shares({.temperature = 1}, {{0, 0.2}, {1, 0.4}, {2, 0.1}, {3, 0.3}});
  check_shares({.temperature = 0}, {{1, 1}});
  check_shares({.temperature = 1e-300}, {{1, 1}});
  // Half the temperature squares the weights 2, 4, 1, 3.
  check_shares({.temperature = 0.5}, {{0, 4 / 30.0}, {1, 16 / 30.0}, {2, 1 / 30.0}, {3, 9 / 30.0}});
  check_shares({.temperature = 1, .top_k = 2}, {{1, 4 / 7.0}, {3, 3 / 7.0}});
  check_shares({.temperature = 1, .top_k = 9}, {{0, 0.2}, {1, 0.4}, {2, 0.1}, {3, 0.3}});
  check_shares({.temperature = 1, .top_p = 0.69}, {{1, 4 / 7.0}, {3, 3 / 7.0}});
  check_shares({.temperature = 1, .top_p = 0.71}, {{0, 2 / 9.0}, {1, 4 / 9.0}, {3, 3 / 9.0}});
  check_shares({.temperature = 1, .top_p = 0.1}, {{1, 1}});
  // 7 of 10 become 1, so that 0.5 is reached by the first.
  check_shares({.temperature = 1, .top_k = 2, .top_p = 0.5}, {{1, 1}});
  check_shares({.temperature = 1, .min_p = 0.6}, {{1, 4 / 7.0}, {3, 3 / 7.0}});
  check_shares({.temperature = 1, .min_p = 0.2}, {{0, 0.2}, {1, 0.4}, {2, 0.1}, {3, 0.3}});
}

TEST_CASE("sampling: the penalty divides positive logits once and multiplies negative ones", "[generate]") {
  const std::vector<float> logits = {2, 3, -1, -1.5};
  const SamplingOptions greedy{.temperature = 0, .repetition_penalty = 2};
  CHECK(draw(logits, greedy, {}, 0) == 1);
  CHECK(draw(logits, greedy, std::vector<int32_t>{1, 1, 1}, 0) == 0);  // 2, 1.5, -1, -1.5
  const std::vector<float> low = {-1, -1.5f};
  CHECK(draw(low, greedy, std::vector<int32_t>{0}, 0) == 1);  // -2, -1.5
  check_shares({.temperature = 1, .repetition_penalty = 2}, {{0, 2 / 8.0}, {1, 2 / 8.0}, {2, 1 / 8.0}, {3, 3 / 8.0}},
               {1});
}

TEST_CASE("sampling: a large vocabulary is drawn from as by adding all probabilities in order", "[generate]") {
  constexpr size_t kTokens = 5003;
  const uint64_t seed = 11;
  CAPTURE(seed);
  const Philox random(seed, "sampling");
  std::vector<float> logits(kTokens);
  for (size_t i = 0; i < kTokens; ++i) logits[i] = 3 * random.normal(i);
  for (size_t i = 0; i < kTokens; i += 7) logits[i] = logits[0];  // equal ones: the first are kept
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const std::pair<double, int> kChoices[] = {{0.05, 0}, {0.6, 0},   {0.999, 0},  {1.0, 0},     {1.0, 1},
                                             {1.0, 40}, {1.0, 900}, {1.0, 5000}, {1.0, 10000}, {0.6, 900}};
  for (const auto& [top_p, top_k] : kChoices) {
    const float floor =
        top_k == 0 || static_cast<size_t>(top_k) > kTokens ? -INFINITY : sorted[static_cast<size_t>(top_k) - 1];
    std::vector<double> weights(kTokens);
    std::vector<size_t> order(kTokens);
    double total = 0;
    for (size_t i = 0; i < kTokens; ++i) {
      order[i] = i;
      total += weights[i] = logits[i] < floor ? 0 : std::exp(static_cast<double>(logits[i]) / 0.7);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weights[a] > weights[b]; });
    double kept = 0, before = 0;
    for (const size_t i : order) {
      if (kept >= top_p * total) weights[i] = 0;
      kept += weights[i];
    }
    size_t different = 0;
    for (size_t i = 0; i < kTokens; ++i) {
      // The middle of the token's share; the smallest are below the rounding of the others' sum.
      const double middle = (before + weights[i] / 2) / kept;
      before += weights[i];
      if (weights[i] < 1e-6 * kept) continue;
      const int32_t id = draw(logits, {.temperature = 0.7, .top_k = top_k, .top_p = top_p}, {}, middle);
      different += id != static_cast<int32_t>(i);
    }
    CAPTURE(top_p, top_k);
    CHECK(different == 0);
    CHECK(kept > 0);
  }
}

TEST_CASE("sampling: options out of range are refused by name", "[generate]") {
  const auto refused = [](const SamplingOptions& options, const std::string& name) {
    try {
      check_sampling(options);
      FAIL(name << " was accepted");
    } catch (const ConfigError& error) {
      CHECK(std::string(error.what()).find(name) != std::string::npos);
    }
  };
  check_sampling({});
  refused({.temperature = -1}, "--temperature");
  refused({.temperature = NAN}, "--temperature");
  refused({.top_k = -1}, "--top-k");
  refused({.top_p = 0}, "--top-p");
  refused({.top_p = 1.1}, "--top-p");
  refused({.min_p = -0.1}, "--min-p");
  refused({.repetition_penalty = 0}, "--repetition-penalty");
}
