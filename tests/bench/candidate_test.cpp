// SPDX-License-Identifier: Apache-2.0
// The statistics that benchmarks derive from the times of works.

#include <cstdlib>
#include <numeric>
#include <vector>

#include "tests/test.hpp"
#include "trainer/bench/candidate.h"

using namespace slipstream;
using namespace slipstream::bench;
using namespace slipstream::planner;

TEST_CASE("times of items add up to a step, also where other items are slow in every step", "[candidate]") {
  // 40 items take 1 and 2 ms; in every step three other items take 5 ms more. The median of no item shows that, but
  // every step does.
  constexpr int kItems = 40, kSteps = 11;
  std::vector<std::vector<double>> seen(kItems);
  std::vector<int64_t> steps_ns;
  for (int s = 0; s < kSteps; ++s) {
    steps_ns.push_back(0);
    for (int i = 0; i < kItems; ++i) {
      const bool struck = i / 3 == s;
      const int64_t ns = (i % 2 == 0 ? 1'000'000 : 2'000'000) + (struck ? 5'000'000 : 0);
      seen[static_cast<size_t>(i)].push_back(static_cast<double>(ns));
      steps_ns.back() += ns;
    }
  }
  std::vector<int64_t> medians;
  for (const std::vector<double>& values : seen) medians.push_back(static_cast<int64_t>(median(values)));
  CHECK(std::accumulate(medians.begin(), medians.end(), int64_t{0}) == 60'000'000);
  const std::vector<int64_t> scaled = adding_up_to_a_step(medians, steps_ns);
  CHECK(std::abs(std::accumulate(scaled.begin(), scaled.end(), int64_t{0}) - 75'000'000) <= kItems);
  for (size_t i = 0; i + 1 < scaled.size(); i += 2) CHECK(std::abs(2 * scaled[i] - scaled[i + 1]) <= 2);
  // Undisturbed steps change nothing, and without measurements the result is empty.
  CHECK(adding_up_to_a_step(medians, {60'000'000, 60'000'000}) == medians);
  CHECK(adding_up_to_a_step({}, {}).empty());
  CHECK(adding_up_to_a_step({0, 0}, {5}) == std::vector<int64_t>{0, 0});
}
