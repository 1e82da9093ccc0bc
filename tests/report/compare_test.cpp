// SPDX-License-Identifier: Apache-2.0
// Comparisons of runs of different lengths against closed forms, and the waits inside communication.

#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "tests/test.hpp"
#include "trainer/report/figures.h"
#include "trainer/report/measured.h"

using namespace slipstream::report;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Steps `first` to `last` with the values of `column(step)`.
template <typename Column>
Series series(const char* name, int64_t first, int64_t last, Column column) {
  Series made{.name = name, .values = {}};
  for (int64_t step = first; step <= last; ++step) made.values.push_back(column(step));
  return made;
}

RunFolder run_of(int64_t first, int64_t last) {
  RunFolder run;
  for (int64_t step = first; step <= last; ++step) run.metrics.steps.push_back(step);
  return run;
}

const Figure& figure(const std::vector<Figure>& figures, std::string_view key) {
  for (const Figure& one : figures)
    if (one.key == key) return one;
  FAIL("no figure " << key);
  return figures.front();
}

SpanName transfer(const char* item, const char* op) {
  SpanName name;
  name.name = name.item = item;
  name.op = op;
  name.kind = SpanName::Kind::communication;
  return name;
}

}  // namespace

TEST_CASE("compare: figures of runs of different lengths are those of equal steps", "[report]") {
  // The longer run goes on falling, and its evaluations are at other steps.
  const auto loss = [](int64_t step) { return 10.0 / static_cast<double>(step); };
  const auto every = [&](int64_t interval) {
    return [=](int64_t step) { return step % interval == 0 ? 2 * loss(step) : kNan; };
  };
  RunFolder brief = run_of(1, 20), whole = run_of(1, 30);
  brief.metrics.columns = {series("loss", 1, 20, loss), series("val_loss", 1, 20, every(4)),
                           series("step_ms", 1, 20, [](int64_t step) { return static_cast<double>(step); })};
  whole.metrics.columns = {series("loss", 1, 30, loss), series("val_loss", 1, 30, every(6)),
                           series("step_ms", 1, 30, [](int64_t step) { return static_cast<double>(step); })};
  for (const auto& order : {std::vector{&brief, &whole}, std::vector{&whole, &brief}}) {
    const Comparison both = compare({order[0], order[1]});
    REQUIRE(both.steps.has_value());
    CHECK(both.steps->first == 3);
    CHECK(both.steps->last == 20);
    for (const std::vector<Figure>& figures : both.figures) {
      CHECK(figure(figures, "loss").value == 10.0 / 20);
      CHECK(figure(figures, "val_loss").value == 20.0 / 12);  // the last common multiple of 4 and 6
      CHECK(figure(figures, "step_ms").value == Approx((3 + 20) / 2.0));
    }
    CHECK(figure(both.figures[0], "steps").value == static_cast<double>(order[0]->metrics.steps.back()));
  }
  // The figures of a run alone are those of all its steps.
  CHECK(figure(figures_of(whole), "loss").value == 10.0 / 30);
  CHECK(figure(figures_of(whole), "step_ms").value == Approx((3 + 30) / 2.0));
}

TEST_CASE("compare: runs without a common step keep the figures of all their steps", "[report]") {
  RunFolder early = run_of(1, 10), late = run_of(11, 20), empty;
  early.metrics.columns = {series("loss", 1, 10, [](int64_t step) { return static_cast<double>(step); })};
  late.metrics.columns = {series("loss", 11, 20, [](int64_t step) { return static_cast<double>(step); })};
  const Comparison both = compare({&early, &late});
  CHECK(!both.steps);
  CHECK(figure(both.figures[0], "loss").value == 10);
  CHECK(figure(both.figures[1], "loss").value == 20);
  CHECK(!compare({&early, &empty}).steps);
  // A run that continues another shares its last steps.
  RunFolder whole = run_of(1, 20);
  whole.metrics.columns = {series("step_ms", 1, 20, [](int64_t step) { return static_cast<double>(step); })};
  late.metrics.columns = {series("step_ms", 11, 20, [](int64_t) { return 1.0; })};
  CHECK(figure(compare({&whole, &late}).figures[0], "step_ms").value == Approx((13 + 20) / 2.0));
}

TEST_CASE("compare: equal runs differ within their noise, and a shift of many times the noise does not", "[report]") {
  const auto seed = static_cast<uint32_t>(std::chrono::system_clock::now().time_since_epoch().count());
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  int beyond = 0;
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t steps = 20 + static_cast<int64_t>(random() % 200);
    RunFolder runs[3] = {run_of(1, steps), run_of(1, steps), run_of(1, steps)};
    for (int r = 0; r < 3; ++r)
      runs[r].metrics.columns = {
          series("step_ms", 1, steps, [&](int64_t) { return 100 + (r == 2 ? 30 : 0) + 5 * normal(random); }),
          series("loss", 1, steps, [&](int64_t step) {
            return 4 - 0.001 * static_cast<double>(step) + (r == 2 ? 1 : 0) + 0.05 * normal(random);
          })};
    const Comparison all = compare({&runs[0], &runs[1], &runs[2]});
    for (const char* key : {"step_ms", "loss"}) {
      const double base = figure(all.figures[0], key).value;
      CHECK(!figure(all.figures[0], key).noise);
      const Figure& same = figure(all.figures[1], key);
      const Figure& shifted = figure(all.figures[2], key);
      beyond += std::abs(same.value - base) > same.noise.value();
      CHECK(std::abs(shifted.value - base) > shifted.noise.value());
    }
  }
  // 0.2 % of 800 are expected; 12 or more have a probability below 1e-6.
  CHECK(beyond < 12);
}

TEST_CASE("compare: what both runs share is no noise, and few values have none", "[report]") {
  // The batches are the same, so the losses scatter alike, and one run is worse by one per cent at every step.
  RunFolder first = run_of(1, 40), worse = run_of(1, 40), brief = run_of(1, 5);
  const auto scatter = [](int64_t step) { return 3 + 0.5 * std::sin(static_cast<double>(7 * step)); };
  first.metrics.columns = {series("loss", 1, 40, scatter)};
  worse.metrics.columns = {series("loss", 1, 40, [&](int64_t step) { return scatter(step) + 0.03; })};
  brief.metrics.columns = {series("loss", 1, 5, [&](int64_t step) { return scatter(step) + 0.03; })};
  const Figure loss = figure(compare({&first, &worse}).figures[1], "loss");
  CHECK(loss.noise.value() < 1e-9);
  CHECK(!figure(compare({&first, &brief}).figures[1], "loss").noise);
}

TEST_CASE("waits inside: a transfer waits beyond the time of its fastest member", "[report]") {
  Trace trace;
  trace.names = {transfer("send.x.part0/1", "send"), transfer("recv.x.part1/1", "recv"),
                 transfer("all_reduce.bucket0/0", "all_reduce"), SpanName{}};
  trace.names[3].name = "matmul";
  trace.steps = {5, 6};
  trace.ranks.resize(2);
  for (int r = 0; r < 2; ++r) {
    trace.ranks[r].rank = r;
    trace.ranks[r].channels = {"compute", "pipe_fwd", "reduce"};
  }
  // The clocks of the ranks have nothing in common. In step 6 the receiver came last.
  trace.ranks[0].spans = {{0, 1, 5, 100, 30}, {2, 2, 5, 200, 80}, {0, 1, 6, 400, 45}};
  trace.ranks[1].spans = {
      {1, 1, 5, 9000, 75}, {2, 2, 5, 9100, 25}, {2, 2, 5, 9150, 15}, {3, 0, 5, 9200, 99}, {1, 1, 6, 9300, 20}};
  Planned planned;
  planned.stages.resize(1);
  planned.stages[0].channels.resize(3);
  planned.coordinates = {{0, 0, 0, 0}, {1, 0, 0, 0}};
  using Waits = std::vector<std::vector<int64_t>>;
  // The sum of rank 1 has two works that take 40 together, so rank 0 waits 40 of its 80.
  CHECK(waits_inside(planned, trace) == Waits{{0, 40, 25}, {45, 0, 0, 0, 0}});
  // Without a plan, the members of a sum are unknown, but a message has two ends.
  CHECK(waits_inside({}, trace) == Waits{{0, 0, 25}, {45, 0, 0, 0, 0}});
}
