// SPDX-License-Identifier: Apache-2.0
// Imported schedules are refused exactly if they cannot end: random schedules and their mutations against the
// definition.

#include "tests/engine/plan/random_schedule.h"

#include <algorithm>
#include <cstdio>

#include "engine/base/check.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// The error of reading the schedule from its CSV; empty if there is none.
std::string refusal(const PipelineSchedule& schedule) {
  try {
    parse_schedule(schedule_csv(schedule), schedule.shape, "a.csv");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// Moves an action of a stage past actions of other passes, or exchanges, loses or repeats one.
void mutate(PipelineSchedule& schedule, std::mt19937_64& random) {
  std::vector<Action>& order = schedule.stages[random() % schedule.stages.size()];
  if (order.empty()) return;
  size_t i = random() % order.size();
  const size_t j = random() % order.size();
  switch (random() % 8) {
    case 0:
      order.erase(order.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    case 1:
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(j), Action(order[i]));
      return;
    case 2:
      std::swap(order[i], order[j]);
      return;
    default:
      while (i != j) {
        const size_t next = i < j ? i + 1 : i - 1;
        if (order[next].pass == order[i].pass && order[next].chunk == order[i].chunk) return;
        std::swap(order[next], order[i]);
        i = next;
      }
  }
}

}  // namespace

TEST_CASE("random schedules and their mutations are refused exactly if they cannot end by definition", "[schedule]") {
  const uint64_t first_seed = 9300, count = test_everything() ? 20000 : 600;
  std::printf("  seeds %llu to %llu\n", static_cast<unsigned long long>(first_seed),
              static_cast<unsigned long long>(first_seed + count - 1));
  int legal = 0, circles = 0, others = 0;
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<int>(random() % n); };
    const ScheduleShape shape{.stages = 1 + below(5), .micro_batches = 1 + below(6), .virtual_stages = 1 + below(3)};
    const bool splits = below(2) == 0;
    PipelineSchedule schedule = seed % 2 == 0 ? random_schedule(shape, splits, random)
                                              : random_schedule(shape, splits, random, random_placement(shape, random));
    CAPTURE(seed, shape.stages, shape.micro_batches, shape.virtual_stages);
    REQUIRE(is_legal(schedule));
    for (int mutations = 0; mutations < 4; ++mutations) {
      const std::string text = refusal(schedule);
      INFO(text);
      CHECK(text.empty() == is_legal(schedule));
      if (!text.empty()) CHECK(text.find("stage ") != std::string::npos);
      (text.empty() ? legal : text.find("never ends") != std::string::npos ? circles : others) += 1;
      mutate(schedule, random);
      // A file without weight passes does not split backward passes.
      schedule.splits_backward = std::any_of(schedule.stages.begin(), schedule.stages.end(), [](const auto& order) {
        return std::any_of(order.begin(), order.end(),
                           [](const Action& action) { return action.pass == Pass::weight; });
      });
    }
  }
  std::printf("  %d legal, %d wait in a circle, %d refused otherwise\n", legal, circles, others);
  CHECK(circles > static_cast<int>(count) / 20);
  CHECK(legal > static_cast<int>(count));
}
