// SPDX-License-Identifier: Apache-2.0
// Zipf's law of Philox::zipf: frequencies against the formula.

#include "engine/base/philox.h"

#include <cmath>
#include <vector>

#include "tests/test.hpp"

using namespace slipstream;

TEST_CASE("philox: zipf draws k with the probability log((k + 2) / (k + 1)) / log(bound + 1)", "[base]") {
  constexpr uint64_t kDraws = 200'000;
  const Philox random(7, "zipf");
  for (uint64_t bound : {1, 2, 3, 50, 50257}) {
    std::vector<double> counts(bound);
    for (uint64_t i = 0; i < kDraws; ++i) {
      const uint64_t id = random.zipf(i, bound);
      REQUIRE(id < bound);
      counts[id] += 1;
    }
    for (uint64_t id = 0; id < bound; id = 3 * id / 2 + 1) {
      const double p = std::log(static_cast<double>(id + 2) / static_cast<double>(id + 1)) /
                       std::log(static_cast<double>(bound) + 1),
                   expected = p * kDraws;
      CAPTURE(bound, id, counts[id], expected);
      CHECK(std::abs(counts[id] - expected) <= 5 * std::sqrt(expected * (1 - p)) + 1);
    }
  }
}
