// SPDX-License-Identifier: Apache-2.0
// Differences between a run and its plan: they add up to the gap, and changed tasks are found by name.

#include "trainer/report/reconcile.h"

#include <cmath>
#include <numeric>
#include <random>

#include "engine/base/check.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::report;

namespace {

/// A compute stream: works and the waits before them, in ns.
struct Block {
  int64_t wait_ns = 0, work_ns = 0,
          gap_ns = 0;  // `gap_ns`: the time after the work in which the stream waits for nothing
};
using Step = std::vector<Block>;

int64_t length_ns(const Step& step) {
  return std::accumulate(step.begin(), step.end(), int64_t{0},
                         [](int64_t sum, const Block& b) { return sum + b.wait_ns + b.work_ns + b.gap_ns; });
}

/// The plan: the wait before work i is for a task that ends when the work begins. The first work waits for nothing.
Planned plan_of(const Step& step) {
  Planned planned{.step_ns = length_ns(step)};
  PlannedStage& stage = planned.stages.emplace_back();
  int64_t at_ns = 0;
  for (size_t i = 0; i < step.size(); ++i) {
    at_ns += step[i].wait_ns;
    if (step[i].wait_ns > 0)
      stage.items.push_back({.name = fmt::format("sum.{}", i), .channel = 1, .begin_ns = at_ns - 1, .ns = 1});
    stage.items.push_back({.name = fmt::format("work.{}", i), .begin_ns = at_ns, .ns = step[i].work_ns});
    at_ns += step[i].work_ns + step[i].gap_ns;
  }
  return planned;
}

Trace trace_of(const std::vector<Step>& steps) {
  Trace trace;
  RankTrace& rank = trace.ranks.emplace_back();
  int64_t at_ns = 1'000'000;
  for (size_t s = 0; s < steps.size(); ++s) {
    trace.steps.push_back(static_cast<int64_t>(s) + 1);
    for (size_t i = 0; i < steps[s].size(); ++i) {
      const auto add = [&](SpanName name, int64_t ns) {
        rank.spans.push_back({.name = static_cast<uint32_t>(trace.names.size()),
                              .step = static_cast<int64_t>(s) + 1,
                              .begin_ns = at_ns,
                              .duration_ns = ns});
        trace.names.push_back(std::move(name));
        at_ns += ns;
      };
      const std::string item = fmt::format("work.{}", i);
      if (steps[s][i].wait_ns > 0)
        add({.item = item, .awaited = fmt::format("sum.{}", i), .kind = SpanName::Kind::wait}, steps[s][i].wait_ns);
      add({.name = item + "/matmul", .item = item}, steps[s][i].work_ns);
      at_ns += steps[s][i].gap_ns;
    }
  }
  return trace;
}

const Reconciled& task(const Reconciliation& result, const std::string& name) {
  for (const Reconciled& task : result.tasks)
    if (task.name == name) return task;
  FAIL("no task " << name);
  return result.tasks.front();
}

}  // namespace

TEST_CASE("reconcile: a run as planned has no gap", "[report]") {
  const Step step{{0, 500, 0}, {200, 300, 0}, {0, 100, 0}};
  const Reconciliation result = reconcile(plan_of(step), trace_of({step, step, step}));
  CHECK(result.steps == 2);
  CHECK(result.gap_ns() == 0);
  for (const Reconciled& t : result.tasks) CHECK(t.more_ns() == 0);
  CHECK(result.named_share() == 1);
}

TEST_CASE("reconcile: slower works, longer waits and gaps are told apart, the largest first", "[report]") {
  const Step plan{{0, 500, 0}, {200, 300, 0}, {0, 100, 0}}, run{{0, 500, 0}, {950, 300, 60}, {0, 100, 40}};
  const Reconciliation result = reconcile(plan_of(plan), trace_of({run, run}));
  CHECK(result.planned_ns == 1100);
  CHECK(result.measured_ns == 1950);
  CHECK(result.tasks[0].name == "sum.1");
  CHECK(result.tasks[0].is_wait);
  CHECK(result.tasks[0].more_ns() == 750);
  CHECK(result.tasks[1].name == "work.2");
  CHECK(result.tasks[1].more_ns() == 60);
  CHECK(result.late_ns == 60);  // work.2 began late
  CHECK(result.unnamed_ns == 40);
  CHECK(std::abs(result.named_share() - 810.0 / 850) < 1e-12);
  const std::string table = table_of(result, 1);
  CHECK(table.find("wait for sum.1") != std::string::npos);
  CHECK(table.find("other tasks") != std::string::npos);
}

TEST_CASE("reconcile: differences of random runs add up to the gap", "[report]") {
  std::mt19937_64 random(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < 50; ++trial) {
    const auto items = static_cast<size_t>(1 + below(12));
    const auto draw = [&] {
      Step step(items);
      for (size_t i = 0; i < items; ++i) step[i] = {i == 0 ? 0 : below(3) * 70, 10 + below(500), below(2) * below(60)};
      return step;
    };
    Step plan = draw();
    for (Block& block : plan) block.gap_ns = 0;  // virtual time has no gaps
    const std::vector<Step> steps{draw(), draw(), draw()};
    const Reconciliation result = reconcile(plan_of(plan), trace_of(steps));
    const double measured_ns = static_cast<double>(length_ns(steps[0]) + length_ns(steps[1])) / 2;
    CHECK(std::abs(result.measured_ns - measured_ns) < 1e-6);
    double sum_ns = result.unnamed_ns;
    for (const Reconciled& t : result.tasks) sum_ns += t.more_ns();
    CHECK(std::abs(sum_ns - result.gap_ns()) < 1e-6);
    CHECK(task(result, "work.0").planned_ns == static_cast<double>(plan[0].work_ns));
  }
}

TEST_CASE("reconcile: a plan without times and a trace of one step are refused", "[report]") {
  const Step step{{0, 500, 0}};
  CHECK_THROWS_AS(reconcile(Planned{}, trace_of({step, step})), DataError);
  CHECK_THROWS_AS(reconcile(plan_of(step), trace_of({step})), DataError);
}
