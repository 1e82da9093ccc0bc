// SPDX-License-Identifier: Apache-2.0
// The overlap metrics of timelines drawn by hand, whose values are known.

#include "engine/report/overlap.h"

#include <random>

#include "engine/device/clock.h"
#include "engine/report/critical_path.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

constexpr int64_t kMs = 1'000'000;
enum : uint32_t { kCompute, kInput, kReduce, kScalars, kUpdate, kHops };

OverlapMeter meter() {
  return OverlapMeter({ChannelKind::compute, ChannelKind::input, ChannelKind::communication, ChannelKind::communication,
                       ChannelKind::local, ChannelKind::stages});
}
uint64_t tag(uint32_t channel, uint32_t item) { return uint64_t{channel} << 32 | item; }

/// All times are in milliseconds.
Span work(uint32_t step, uint32_t item, int64_t begin, int64_t end) {
  return {.kind = Span::Kind::work, .item = item, .step = step, .begin_ns = begin * kMs, .end_ns = end * kMs};
}
Span wait(uint32_t step, uint32_t item, uint64_t awaited, int64_t begin, int64_t end) {
  return {.kind = Span::Kind::wait,
          .awaited = awaited,
          .item = item,
          .step = step,
          .begin_ns = begin * kMs,
          .end_ns = end * kMs};
}

/// Splits the waits of all ranks. `awaited[r]` are pairs of an item and one that it awaits; the number of a
/// communication task is also its rendezvous, except for `local` ones.
void split(std::vector<StepTimes*> ranks, const std::vector<std::vector<std::pair<uint32_t, uint32_t>>>& awaited,
           const std::vector<uint32_t>& local = {}) {
  constexpr size_t kItems = 32;
  PlanGraph empty{.channels = std::vector<uint32_t>(kItems),
                  .rendezvous_ids = {},
                  .awaited = std::vector<std::vector<uint32_t>>(kItems),
                  .awaited_before = std::vector<std::vector<uint32_t>>(kItems)};
  for (size_t i = 0; i < kItems; ++i) empty.rendezvous_ids.push_back(i);
  for (uint32_t item : local) empty.rendezvous_ids[item] = PlanGraph::kLocal;
  std::vector<PlanGraph> graphs(ranks.size(), empty);
  std::vector<RankStep> steps;
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const auto& [item, other] : awaited[r]) graphs[r].awaited[item].push_back(other);
    steps.push_back({ranks[r], &graphs[r]});
  }
  split_waits(steps);
}

void check_parts_sum(const StepTimes& t) {
  CHECK(t.compute_ns + t.exposed_ns + t.bubble_ns + t.input_ns + t.other_ns == t.step_ns);
}

}  // namespace

TEST_CASE("clocks: the offset is right within half of the quickest round trip", "[overlap]") {
  const uint64_t seed = 20;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t offset = static_cast<int64_t>(random() % 2'000'000'000'000) - 1'000'000'000'000;
    int64_t now = static_cast<int64_t>(random() % 1'000'000'000), quickest = INT64_MAX;
    std::vector<ClockReading> readings;
    for (int i = 0; i < 8; ++i) {
      const auto there = static_cast<int64_t>(random() % 100'000), back = static_cast<int64_t>(random() % 100'000);
      readings.push_back({.asked_ns = now, .theirs_ns = now + there + offset, .answered_ns = now + there + back});
      quickest = std::min(quickest, there + back);
      now += there + back;
    }
    CHECK(std::abs(clock_offset_of(readings) - offset) <= quickest / 2 + 1);
  }
}

TEST_CASE("the length of a union", "[overlap]") {
  CHECK(union_ns({}) == 0);
  CHECK(union_ns({{5, 5}}) == 0);
  CHECK(union_ns({{0, 10}, {20, 25}}) == 15);
  CHECK(union_ns({{20, 25}, {0, 10}}) == 15);
  CHECK(union_ns({{0, 10}, {5, 8}}) == 10);    // one is inside the other
  CHECK(union_ns({{0, 10}, {5, 18}}) == 18);   // they overlap
  CHECK(union_ns({{0, 10}, {10, 18}}) == 18);  // they touch
  CHECK(union_ns({{0, 10}, {0, 10}}) == 10);   // they are the same
  CHECK(union_ns({{-9, -4}, {-6, 3}}) == 12);
}

TEST_CASE("compute-bound: all communication is hidden", "[overlap]") {
  // 10 layers take 5 ms each, 8 ms of communication run under the last of them, and the update follows.
  OverlapMeter m = meter();
  std::vector<Span> compute;
  for (uint32_t i = 0; i < 10; ++i) compute.push_back(work(1, i, 5 * i, 5 * i + 5));
  compute.push_back(wait(1, 10, tag(kReduce, 20), 50, 50));
  compute.push_back(work(1, 10, 50, 52));
  m.add(kCompute, compute);
  m.add(kReduce, {work(1, 20, 25, 28), work(1, 21, 30, 35)});
  const StepTimes t = m.take(1, false);
  CHECK(t.step == 1);
  CHECK(t.begin_ns == 0);
  CHECK(t.step_ns == 52 * kMs);
  CHECK(t.compute_ns == 52 * kMs);
  CHECK(t.comm_ns == 8 * kMs);
  CHECK(t.exposed_ns == 0);
  CHECK(t.other_ns == 0);
  CHECK(t.skew_ns == 0);
  CHECK(t.exposures.empty());
  CHECK(t.work_ns.size() == 11);  // those of compute only
  check_parts_sum(t);
}

TEST_CASE("network-bound: the tail is exposed and belongs to the task that was awaited", "[overlap]") {
  // There are 80 ms of compute and 120 ms of communication that begin at 20: 140 ms in all, of which 60 are exposed, so
  // half of the communication is hidden.
  OverlapMeter m = meter();
  m.add(kCompute, {work(1, 0, 0, 40), work(1, 1, 40, 78), wait(1, 2, tag(kReduce, 7), 78, 138), work(1, 2, 138, 140)});
  m.add(kReduce, {work(1, 6, 18, 60), work(1, 7, 60, 138)});
  const StepTimes t = m.take(1, false);
  CHECK(t.step_ns == 140 * kMs);
  CHECK(t.compute_ns == 80 * kMs);
  CHECK(t.comm_ns == 120 * kMs);
  CHECK(t.exposed_ns == 60 * kMs);
  CHECK(t.other_ns == 0);
  CHECK(1.0 - static_cast<double>(t.exposed_ns) / static_cast<double>(t.comm_ns) == Approx(0.5));
  REQUIRE(t.exposures.size() == 1);
  CHECK(t.exposures[0].awaited == tag(kReduce, 7));
  CHECK(t.exposures[0].item == 2);
  CHECK(t.exposures[0].begin_ns == 78 * kMs);
  CHECK(t.exposures[0].end_ns == 138 * kMs);
  REQUIRE(t.tasks.size() == 2);
  CHECK(t.tasks[0].item == 6);
  CHECK(t.tasks[1].item == 7);
  check_parts_sum(t);
}

TEST_CASE("10 layers of 5 ms with 3 ms each in buckets of two", "[overlap]") {
  // This is the textbook row: backward takes 50 ms, 5 buckets take 6 ms each, the first begins at 10 ms, and the step
  // takes 56 ms: 80 % of 30 ms are hidden.
  OverlapMeter m = meter();
  std::vector<Span> compute, reduce;
  for (uint32_t i = 0; i < 10; ++i) compute.push_back(work(1, i, 5 * i, 5 * i + 5));
  for (uint32_t b = 0; b < 5; ++b) reduce.push_back(work(1, 20 + b, 10 * (b + 1), 10 * (b + 1) + 6));
  compute.push_back(wait(1, 10, tag(kReduce, 24), 50, 56));
  compute.push_back(work(1, 10, 56, 56));
  m.add(kCompute, compute);
  m.add(kReduce, reduce);
  const StepTimes t = m.take(1, false);
  CHECK(t.step_ns == 56 * kMs);
  CHECK(t.comm_ns == 30 * kMs);
  CHECK(t.exposed_ns == 6 * kMs);
  CHECK(1.0 - static_cast<double>(t.exposed_ns) / static_cast<double>(t.comm_ns) == Approx(0.8));
  check_parts_sum(t);
}

TEST_CASE("communication that delays the next step's first work is exposed", "[overlap]") {
  // The last work ends at 30; a gather runs until 45; the next step waits for it and begins at 45.
  OverlapMeter m = meter();
  m.add(kCompute, {work(1, 0, 0, 30), wait(2, 0, tag(kReduce, 9), 31, 45), work(2, 0, 45, 75)});
  m.add(kReduce, {work(1, 9, 20, 45)});
  const StepTimes t = m.take(1, true);
  CHECK(t.step_ns == 45 * kMs);
  CHECK(t.compute_ns == 30 * kMs);
  CHECK(t.exposed_ns == 14 * kMs);
  CHECK(t.other_ns == 1 * kMs);  // the time between the last work and the wait
  CHECK(t.comm_ns == 25 * kMs);
  check_parts_sum(t);
  // The same wait is not counted again in its own step, which begins when it is over.
  const StepTimes next = m.take(2, false);
  CHECK(next.begin_ns == 45 * kMs);
  CHECK(next.step_ns == 30 * kMs);
  CHECK(next.exposed_ns == 0);
  CHECK(next.exposures.empty());
}

TEST_CASE("without a next step a step ends with its last work", "[overlap]") {
  OverlapMeter m = meter();
  m.add(kCompute, {work(1, 0, 10, 30), work(1, 1, 33, 40)});
  m.add(kReduce, {work(1, 9, 20, 60)});
  const StepTimes t = m.take(1, false);
  CHECK(t.begin_ns == 10 * kMs);
  CHECK(t.step_ns == 30 * kMs);
  CHECK(t.compute_ns == 27 * kMs);
  CHECK(t.other_ns == 3 * kMs);
  CHECK(t.exposed_ns == 0);
  CHECK(t.comm_ns == 40 * kMs);
}

TEST_CASE("waiting for a late peer is skew, and no exposed communication", "[overlap]") {
  // This rank enters at 10, the last member at 26, done at 30; compute waits from 12 to 30: exposed 4 of it.
  OverlapMeter m = meter();
  m.add(kCompute, {work(1, 0, 0, 10), work(1, 2, 10, 12), wait(1, 1, tag(kReduce, 5), 12, 30), work(1, 1, 30, 32)});
  m.add(kReduce, {work(1, 5, 10, 30), work(1, 6, 30, 31)});
  StepTimes t = m.take(1, false);
  CHECK(t.comm_ns == 21 * kMs);
  CHECK(t.skew_ns == 0);  // the ranks have not compared their entries yet
  // The late peer itself saw no skew, because its own entry is the last one.
  OverlapMeter late = meter();
  late.add(kCompute, {work(1, 0, 0, 26), wait(1, 1, tag(kReduce, 5), 26, 30), work(1, 1, 30, 32)});
  late.add(kReduce, {work(1, 5, 26, 30), work(1, 6, 30, 31)});
  StepTimes own = late.take(1, false);
  split({&t, &own}, {{{5, 0}, {1, 5}}, {{5, 0}, {1, 5}}});
  CHECK(t.comm_ns == 5 * kMs);
  CHECK(t.skew_ns == 16 * kMs);
  CHECK(t.exposed_ns == 4 * kMs);
  CHECK(t.bubble_ns == 14 * kMs);
  CHECK(t.step_ns == 32 * kMs);
  CHECK(own.comm_ns == 5 * kMs);
  CHECK(own.skew_ns == 0);
  CHECK(own.exposed_ns == 4 * kMs);
  CHECK(own.bubble_ns == 0);
  check_parts_sum(t);
  check_parts_sum(own);
}

TEST_CASE("communication outside compute is not hidden, whatever compute was idle for", "[overlap]") {
  // The host is late from 10 to 20, and 14 ms of communication run from 8 to 22.
  OverlapMeter m = meter();
  m.add(kCompute, {work(1, 0, 0, 10), work(1, 1, 20, 30)});
  m.add(kReduce, {work(1, 5, 8, 22)});
  const StepTimes t = m.take(1, false);
  CHECK(t.comm_ns == 14 * kMs);
  CHECK(t.hidden_ns == 4 * kMs);
  CHECK(t.exposed_ns == 0);
  CHECK(t.other_ns == 10 * kMs);
  check_parts_sum(t);
}

TEST_CASE("waits of two stages: pipeline transfers are exposed, compute of the other stage is a bubble", "[overlap]") {
  // The first stage sends at 14 and at 30, and each message travels for 4. The second stage wants them at 10 and at 20.
  // Both add from 42 to 45. Without communication the second stage would wait from 10 to 14, from 16 to 30 and from 36
  // to 42.
  OverlapMeter first = meter(), second = meter();
  first.add(kCompute, {work(1, 0, 0, 14), work(1, 1, 14, 30), work(1, 2, 30, 42), wait(1, 3, tag(kReduce, 10), 42, 45),
                       work(1, 3, 45, 46)});
  first.add(kHops, {work(1, 8, 14, 18), work(1, 9, 30, 34)});
  first.add(kReduce, {work(1, 10, 42, 45)});
  second.add(kCompute, {work(1, 0, 0, 10), wait(1, 1, tag(kHops, 8), 10, 18), work(1, 1, 18, 20),
                        wait(1, 2, tag(kHops, 9), 20, 34), work(1, 2, 34, 40), wait(1, 3, tag(kReduce, 10), 40, 45),
                        work(1, 3, 45, 46)});
  second.add(kHops, {work(1, 8, 0, 18), work(1, 9, 18, 34)});
  second.add(kReduce, {work(1, 10, 40, 45)});
  StepTimes a = first.take(1, false), b = second.take(1, false);
  split({&a, &b}, {{{8, 0}, {9, 1}, {10, 2}, {3, 10}}, {{1, 8}, {2, 9}, {10, 2}, {3, 10}}});
  CHECK(a.exposed_ns == 3 * kMs);
  CHECK(a.bubble_ns == 0);
  CHECK(b.exposed_ns == 3 * kMs);
  CHECK(b.bubble_ns == (4 + 14 + 6) * kMs);
  check_parts_sum(a);
  check_parts_sum(b);
  int64_t exposed_ns = 0;
  for (const Exposure& wait : b.exposures) exposed_ns += wait.exposed_ns();
  CHECK(exposed_ns == b.exposed_ns);  // what is exposed belongs to the tasks that compute waited for
}

TEST_CASE("a wait for one channel is exposed while another one travels", "[overlap]") {
  // The last rank of the norm enters it only after its hop, which travels from 10 to 20; the norm itself takes 1.
  OverlapMeter waits = meter(), sends = meter();
  waits.add(kCompute, {work(1, 0, 0, 10), wait(1, 1, tag(kScalars, 6), 10, 21), work(1, 1, 21, 25)});
  waits.add(kHops, {work(1, 8, 10, 20)});
  waits.add(kScalars, {work(1, 6, 10, 21)});
  sends.add(kCompute, {work(1, 0, 0, 10), wait(1, 1, tag(kScalars, 6), 10, 21), work(1, 1, 21, 25)});
  sends.add(kHops, {work(1, 8, 10, 20)});
  sends.add(kScalars, {work(1, 6, 20, 21)});
  StepTimes a = waits.take(1, false), b = sends.take(1, false);
  split({&a, &b}, {{{8, 0}, {6, 0}, {1, 6}}, {{8, 0}, {6, 8}, {1, 6}}});
  for (const StepTimes* t : {&a, &b}) {
    CHECK(t->exposed_ns == 11 * kMs);
    CHECK(t->bubble_ns == 0);
    check_parts_sum(*t);
  }
}

TEST_CASE("sums between the messages of one channel stay, and the messages are exposed", "[overlap]") {
  // In two micro-batches of ZeRO-3, each shard travels for 20 and is added in 1 on the channel that carries it. On an
  // infinitely fast network the next gather would begin at 12.
  OverlapMeter meters[] = {meter(), meter()};
  std::vector<StepTimes> times;
  for (OverlapMeter& m : meters) {
    m.add(kCompute, {work(1, 0, 0, 10), wait(1, 1, tag(kReduce, 11), 10, 55), work(1, 1, 55, 60)});
    m.add(kReduce,
          {work(1, 6, 10, 30), work(1, 9, 30, 31), work(1, 7, 31, 51), work(1, 10, 51, 52), work(1, 11, 52, 55)});
    times.push_back(m.take(1, false));
  }
  split({&times[0], &times[1]}, {{{6, 0}, {9, 6}, {10, 7}, {1, 11}}, {{6, 0}, {9, 6}, {10, 7}, {1, 11}}}, {9, 10});
  for (const StepTimes& t : times) {
    CHECK(t.exposed_ns == 43 * kMs);
    CHECK(t.bubble_ns == 2 * kMs);
    check_parts_sum(t);
  }
}

TEST_CASE("a gather of the next step that waits for a late peer is exposed only while it travels", "[overlap]") {
  // One rank is ready at 10, the other at 60; the gather of the next step's first layer takes 2.
  OverlapMeter early = meter(), late = meter();
  for (auto& [m, ready] : {std::pair{&early, 10}, std::pair{&late, 60}}) {
    m->add(kCompute, {work(1, 0, 0, ready), wait(2, 0, tag(kReduce, 5), ready, 62), work(2, 0, 62, 63)});
    m->add(kReduce, {work(1, 5, -4, -2), work(2, 5, ready, 62)});
  }
  StepTimes a = early.take(1, true), b = late.take(1, true);
  split({&a, &b}, {{{0, 5}}, {{0, 5}}});
  CHECK(a.exposed_ns == 2 * kMs);
  CHECK(a.bubble_ns == 50 * kMs);
  CHECK(b.exposed_ns == 2 * kMs);
  CHECK(b.bubble_ns == 0);
  check_parts_sum(a);
}

TEST_CASE("the first work of a step that waits for another stage is a bubble", "[overlap]") {
  OverlapMeter next = meter();
  next.add(kCompute, {work(1, 0, 0, 10), wait(2, 0, tag(kHops, 8), 10, 25), work(2, 0, 25, 30)});
  next.add(kHops, {work(1, 8, -5, 0)});
  StepTimes fill = next.take(1, true);
  split({&fill}, {{{0, 8}}});
  CHECK(fill.bubble_ns == 15 * kMs);
  CHECK(fill.exposed_ns == 0);
  check_parts_sum(fill);
}

TEST_CASE("entries outside a task are clamped to it", "[overlap]") {
  OverlapMeter m = meter();
  m.add(kCompute, {work(1, 0, 0, 40)});
  m.add(kReduce, {work(1, 5, 10, 20), work(1, 6, 25, 30)});
  StepTimes t = m.take(1, false);
  apply_last_entries(t, {3 * kMs, 99 * kMs});
  CHECK(t.comm_ns == 10 * kMs);
  CHECK(t.skew_ns == 5 * kMs);
}

TEST_CASE("waiting for the batch is its own cause", "[overlap]") {
  OverlapMeter m = meter();
  m.add(kCompute, {wait(1, 0, tag(kInput, 8), 0, 5), work(1, 0, 5, 10), wait(1, 1, tag(kReduce, 9), 10, 13),
                   work(1, 1, 13, 20), wait(2, 0, tag(kInput, 8), 20, 27), work(2, 0, 27, 30)});
  m.add(kInput, {work(1, 8, 12, 27)});
  m.add(kReduce, {work(1, 9, 8, 13)});
  const StepTimes t = m.take(1, true);
  CHECK(t.begin_ns == 5 * kMs);  // the first wait belongs to the previous step
  CHECK(t.step_ns == 22 * kMs);
  CHECK(t.compute_ns == 12 * kMs);
  CHECK(t.exposed_ns == 3 * kMs);
  CHECK(t.input_ns == 7 * kMs);
  CHECK(t.other_ns == 0);
  CHECK(t.comm_ns == 5 * kMs);  // staging a batch is not communication
  REQUIRE(t.exposures.size() == 2);
  CHECK(t.exposures[0].awaited == tag(kReduce, 9));
  CHECK(t.exposures[1].awaited == tag(kInput, 8));
  CHECK(t.exposures[0].exposed_ns() == 3 * kMs);
  CHECK(t.exposures[1].exposed_ns() == 0);
  check_parts_sum(t);
}

TEST_CASE("channels that overlap are counted once, waits that follow each other add up", "[overlap]") {
  OverlapMeter m = meter();
  m.add(kCompute, {work(1, 0, 0, 20), wait(1, 1, tag(kReduce, 9), 20, 30), wait(1, 1, tag(kScalars, 11), 30, 34),
                   wait(1, 1, tag(kReduce, 10), 34, 34), work(1, 1, 34, 40)});
  m.add(kReduce, {work(1, 9, 10, 30), work(1, 10, 30, 32)});
  m.add(kScalars, {work(1, 11, 15, 34)});
  const StepTimes t = m.take(1, false);
  CHECK(t.comm_ns == 24 * kMs);  // from 10 to 34, not 22 + 19
  CHECK(t.hidden_ns == 10 * kMs);
  CHECK(t.exposed_ns == 14 * kMs);
  CHECK(t.exposures.size() == 2);
  REQUIRE(t.tasks.size() == 3);
  CHECK(t.tasks[0].channel == kReduce);
  CHECK(t.tasks[2].channel == kScalars);
  check_parts_sum(t);
}

TEST_CASE("waiting for local work is not exposed communication", "[overlap]") {
  OverlapMeter m = meter();
  m.add(kCompute, {work(1, 0, 0, 20), wait(1, 1, tag(kUpdate, 3), 20, 26), work(1, 1, 26, 30)});
  m.add(kUpdate, {wait(1, 3, tag(kReduce, 9), 12, 18), work(1, 3, 18, 26)});
  m.add(kReduce, {work(1, 9, 10, 18)});
  const StepTimes t = m.take(1, false);
  CHECK(t.exposed_ns == 0);
  CHECK(t.other_ns == 6 * kMs);
  CHECK(t.comm_ns == 8 * kMs);
  REQUIRE(t.work_ns.size() == 3);
  CHECK(t.work_ns[2] == std::pair<uint32_t, int64_t>(3, 8 * kMs));
  check_parts_sum(t);
}

TEST_CASE("waiting for an update that waits for communication is exposed as long as that travels", "[overlap]") {
  OverlapMeter m = meter();
  m.add(kCompute, {work(1, 0, 0, 10), wait(1, 1, tag(kUpdate, 3), 10, 26), work(1, 1, 26, 30)});
  m.add(kUpdate, {wait(1, 3, tag(kReduce, 9), 4, 18), work(1, 3, 18, 26)});
  m.add(kReduce, {work(1, 9, 2, 18)});
  const StepTimes t = m.take(1, false);
  CHECK(t.exposed_ns == 8 * kMs);
  CHECK(t.other_ns == 8 * kMs);  // the update itself takes this time
  REQUIRE(t.exposures.size() == 1);
  CHECK(t.exposures[0].awaited == tag(kReduce, 9));
  check_parts_sum(t);
}

TEST_CASE("spans may arrive in pieces and of several steps", "[overlap]") {
  OverlapMeter m = meter();
  m.add(kCompute, {work(1, 0, 0, 4)});
  m.add(kReduce, {work(1, 5, 3, 9), work(2, 5, 12, 15)});
  m.add(kCompute, {work(1, 0, 4, 8), work(2, 0, 10, 14)});
  m.add(kCompute, {work(2, 1, 14, 20)});
  const StepTimes first = m.take(1, true), second = m.take(2, false);
  CHECK(first.compute_ns == 8 * kMs);
  CHECK(first.step_ns == 10 * kMs);
  CHECK(first.other_ns == 2 * kMs);
  CHECK(first.comm_ns == 6 * kMs);
  REQUIRE(first.work_ns.size() == 1);
  CHECK(first.work_ns[0].second == 8 * kMs);  // the works of one item add up
  CHECK(second.step_ns == 10 * kMs);
  CHECK(second.comm_ns == 3 * kMs);
}
