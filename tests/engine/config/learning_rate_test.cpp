// SPDX-License-Identifier: Apache-2.0
// The learning rate at steps where its formula gives a simple number.

#include "engine/config/learning_rate.h"

#include <cmath>

#include "tests/test.hpp"

using namespace slipstream;

namespace {

Optimizer schedule(int64_t warmup, int64_t decay) {
  Optimizer o;
  o.learning_rate = 1.0;
  o.min_learning_rate = 0.1;
  o.warmup_steps = warmup;
  o.decay_steps = decay;
  return o;
}

}  // namespace

TEST_CASE("learning rate: a straight line up, half a cosine down, constant after", "[config]") {
  const Optimizer o = schedule(10, 130);
  for (int64_t step = 1; step <= 10; ++step) CHECK(learning_rate(o, step) == Approx(0.1 * static_cast<double>(step)));
  // The steps are a sixth, a quarter, a third, half ... of the way, where 1 + cos is 1 + sqrt(3)/2, 1 + sqrt(1/2), 3/2,
  // 1 ...
  const std::pair<int64_t, double> known[] = {
      {10, 2},   {30, 1 + std::sqrt(3.0) / 2}, {40, 1 + std::sqrt(0.5)},      {50, 1.5}, {70, 1},
      {90, 0.5}, {100, 1 - std::sqrt(0.5)},    {110, 1 - std::sqrt(3.0) / 2}, {130, 0}};
  for (const auto& [step, one_plus_cosine] : known)
    CHECK(learning_rate(o, step) == Approx(0.1 + 0.45 * one_plus_cosine));
  for (int64_t step : {130, 131, 1000000}) CHECK(learning_rate(o, step) == 0.1);
  for (int64_t step = 10; step < 130; ++step) CHECK(learning_rate(o, step + 1) < learning_rate(o, step));
}

TEST_CASE("learning rate: without warm-up, without decay, and with the same least rate", "[config]") {
  CHECK(learning_rate(schedule(0, 100), 50) == Approx(0.55));
  CHECK(learning_rate(schedule(5, 5), 4) == Approx(0.8));
  CHECK(learning_rate(schedule(5, 5), 5) == 0.1);
  Optimizer constant = schedule(0, 100);
  constant.min_learning_rate = 1.0;
  for (int64_t step : {1, 50, 100, 200}) CHECK(learning_rate(constant, step) == 1.0);
}

TEST_CASE("learning rate: straight lines down, and a full rate before the cool-down", "[config]") {
  Optimizer o = schedule(10, 110);
  o.schedule = RateSchedule::linear;
  for (const auto& [step, rate] : {std::pair(5, 0.5), {10, 1.0}, {35, 0.775}, {60, 0.55}, {110, 0.1}, {200, 0.1}})
    CHECK(learning_rate(o, step) == Approx(rate));
  o.schedule = RateSchedule::constant;
  for (const auto& [step, rate] : {std::pair(5, 0.5), {10, 1.0}, {110, 1.0}, {200, 1.0}})
    CHECK(learning_rate(o, step) == Approx(rate));
  o.schedule = RateSchedule::warmup_stable_decay;
  o.cooldown_steps = 20;
  for (const auto& [step, rate] :
       {std::pair(5, 0.5), {10, 1.0}, {89, 1.0}, {90, 1.0}, {95, 0.775}, {100, 0.55}, {110, 0.1}, {120, 0.1}})
    CHECK(learning_rate(o, step) == Approx(rate));
  o.cooldown_steps = 0;  // a tenth of 110
  for (const auto& [step, rate] : {std::pair(99, 1.0), {110, 0.1}}) CHECK(learning_rate(o, step) == Approx(rate));
  CHECK(learning_rate(o, 100) == Approx(0.1 + 0.9 * 10 / 11));
}
