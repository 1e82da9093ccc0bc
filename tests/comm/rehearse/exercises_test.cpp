// SPDX-License-Identifier: Apache-2.0
// Rehearsals of exercises with known answers: the hidden share of communication, and the best number of buckets.

#include <cmath>

#include "engine/report/overlap.h"
#include "tests/comm/rehearse/toy_plans.h"

using namespace slipstream;
using namespace slipstream::comm;

namespace {

constexpr int64_t kMs = 1000000;

double hidden_of(const RankTimes& times) {
  return hidden_share(static_cast<double>(times.communication_ns), static_cast<double>(times.exposed_ns));
}

}  // namespace

TEST_CASE("exercise: 10 layers of 5 ms backward, 3 ms communication each, 2-layer buckets: 56 ms, 80 % hidden") {
  ToyJob job;
  ToyPlan plan(job);
  for (int l = 9; l >= 0; --l) plan.compute(named("B{}", l), 5 * kMs);
  plan.compute("end", 1);
  for (int b = 4; b >= 0; --b)
    plan.task({.name = named("ar{}", b),
               .channel = "reduce",
               .axis = Axis::data,
               .op = Op::all_reduce,
               .time_ns = 6 * kMs,
               .after = {named("B{}", 2 * b), named("B{}", 2 * b + 1)},
               .before = "end"});
  Plan& built = plan.build();
  finish(job, built);
  const Rehearsal rehearsal = rehearse_in_a_row(job, {&built}, Mesh(MeshSizes{.data = 2}), 1);
  CHECK(rehearsal.makespan_ns - 1 == 56 * kMs);
  CHECK(rehearsal.ranks[0].communication_ns == 30 * kMs);
  CHECK(rehearsal.ranks[0].exposed_ns == 6 * kMs);
  CHECK(hidden_of(rehearsal.ranks[0]) == Approx(0.8));
  REQUIRE(rehearsal.ranks[0].exposed.size() == 1);
  CHECK(built[rehearsal.ranks[0].exposed[0].awaited].name == "ar0");
}

TEST_CASE("exercise: 80 ms of compute and 120 ms of communication in 140 ms: overlap fraction 50 %") {
  ToyJob job;
  ToyPlan plan(job);
  plan.compute("first", 20 * kMs).compute("rest", 60 * kMs).compute("end", 1);
  plan.task({.name = "reduce",
             .channel = "reduce",
             .axis = Axis::data,
             .op = Op::all_reduce,
             .time_ns = 120 * kMs,
             .after = {"first"},
             .before = "end"});
  Plan& built = plan.build();
  finish(job, built);
  const Rehearsal rehearsal = rehearse_in_a_row(job, {&built}, Mesh(MeshSizes{.data = 2}), 1);
  CHECK(rehearsal.makespan_ns - 1 == 140 * kMs);
  CHECK(rehearsal.ranks[0].exposed_ns == 60 * kMs);
  CHECK(hidden_of(rehearsal.ranks[0]) == Approx(0.5));
}

TEST_CASE("exercise: the bucket size that minimises the time of 1 GB at 100 Gbit/s with 100 us latency") {
  // N equal buckets become ready evenly during a backward of T; each costs L + (G / N) / W. While the network is the
  // bottleneck the time is t(N) = T / N + N L + G / W, so N* = sqrt(T / L): for T = 40 ms, 20 buckets of 50 MB, 84 ms.
  constexpr int64_t kBackwardNs = 40000000, kLatencyNs = 100000, kElems = 250000000;
  constexpr double kBytesPerSecond = 12.5e9;
  auto rehearsed_ns = [&](int buckets) {
    ToyJob job;
    RooflinePrice price({.flops_per_second = 1e9}, {kBytesPerSecond, kLatencyNs / 2});  // direct all_reduce: 2 rounds
    ToyPlan plan(job);
    for (int b = 0; b < buckets; ++b) plan.compute(named("B{}", b), 0);
    plan.compute("end", 0);
    for (int b = 0; b < buckets; ++b)
      plan.task({.name = named("ar{}", b),
                 .channel = "reduce",
                 .axis = Axis::data,
                 .op = Op::all_reduce,
                 .after = {named("B{}", b)},
                 .before = "end"});
    Plan& built = plan.build();
    for (int b = 0; b < buckets; ++b) {
      built.spine[static_cast<size_t>(b)].cost.flops = kBackwardNs / buckets;  // 1 flop per ns
      built.tasks[static_cast<size_t>(b)].elems = kElems / buckets;
    }
    const Mesh mesh(MeshSizes{.data = 2});
    finish(stages_of(job, {&built}), mesh, job.channels, price);
    const auto ranks = in_a_row(job, {&built}, mesh, 1);
    return rehearse(mesh, job.channels, ranks, price).makespan_ns;
  };
  auto formula_ns = [&](int buckets) {
    return static_cast<double>(kBackwardNs) / buckets + static_cast<double>(buckets * kLatencyNs) +
           4.0 * static_cast<double>(kElems) / kBytesPerSecond * 1e9;
  };
  int best = 0;
  int64_t best_ns = INT64_MAX;
  for (int buckets = 1; buckets <= 60; ++buckets) {
    const int64_t time_ns = rehearsed_ns(buckets);
    // Buckets are cut to whole elements, and costs to whole ns, which is less than 10 ns per bucket.
    CHECK(std::abs(static_cast<double>(time_ns) - formula_ns(buckets)) < 10.0 * buckets + 10);
    if (time_ns < best_ns) best_ns = time_ns, best = buckets;
  }
  CHECK(best == std::lround(std::sqrt(static_cast<double>(kBackwardNs) / kLatencyNs)));
  CHECK(best_ns / 1000 == 84000);
}
