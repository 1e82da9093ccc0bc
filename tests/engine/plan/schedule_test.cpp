// SPDX-License-Identifier: Apache-2.0
// Schedules against the closed forms of their papers, and their laws by random search.

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <tuple>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "engine/plan/schedules/schedule.h"
#include "tests/engine/plan/random_schedule.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

constexpr ScheduleKind kKinds[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b,
                                   ScheduleKind::zb_h1, ScheduleKind::zb_v};

/// The times of one stage: forward f, backward b (with w where it is not split off), weight w. A chunk takes its share.
PlayTimes equal_stages(const PipelineSchedule& schedule, int64_t f, int64_t b, int64_t w) {
  const bool split = schedule.splits_backward;
  const int64_t v = schedule.shape.virtual_stages;
  return {.action_ns =
              [=](int, const Action& action) {
                return (action.pass == Pass::forward ? f : action.pass == Pass::weight ? w : split ? b : b + w) / v;
              },
          .transfer_ns = {}};
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("the bubble has its closed form: (p-1)/m, (p-1)/(v m), and for ZB-H1 a third of 1F1B's", "[schedule]") {
  constexpr int64_t f = 1200, b = 1200, w = 1200;  // backward = 2 x forward, both halves equal
  for (int p : {1, 2, 3, 4, 8})
    for (int m : {p, 2 * p, 5 * p}) {
      CAPTURE(p, m);
      const double expected = static_cast<double>(p - 1) / m;
      for (ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
        const PipelineSchedule schedule = make_schedule(kind, {p, m, 1});
        CHECK(play(schedule, equal_stages(schedule, f, b, w)).bubble() == Approx(expected));
      }
      for (int v : {2, 3, 4}) {
        if (p == 1) continue;
        const PipelineSchedule schedule = make_schedule(ScheduleKind::interleaved_1f1b, {p, m, v});
        CHECK(play(schedule, equal_stages(schedule, f, b, w)).bubble() == Approx(expected / v));
      }
      const PipelineSchedule zero = make_schedule(ScheduleKind::zb_h1, {p, m, 1});
      CHECK(play(zero, equal_stages(zero, f, b, w)).bubble() == Approx(expected / 3));
    }
}

TEST_CASE("the span of ZB-H1 is M(f+b+w) + (P-1)(f+b-w) for unequal halves", "[schedule]") {
  for (const auto& [f, b, w] : {std::tuple<int64_t, int64_t, int64_t>{10, 10, 10}, {10, 12, 8}, {13, 17, 9}})
    for (int p : {2, 3, 4})
      for (int m : {2 * p, 3 * p}) {
        CAPTURE(f, b, w, p, m);
        const PipelineSchedule schedule = make_schedule(ScheduleKind::zb_h1, {p, m, 1});
        CHECK(play(schedule, equal_stages(schedule, f, b, w)).makespan_ns == m * (f + b + w) + (p - 1) * (f + b - w));
      }
}

TEST_CASE("ZB-V on equal passes: no stage waits between its first and its last action, in the memory of 1F1B",
          "[schedule]") {
  constexpr int64_t tick = 10;  // a pass of a chunk
  for (int p : {1, 2, 3, 4, 8, 13})
    for (int m : {1, 2, p, 2 * p - 2, 2 * p - 1, 2 * p, 5 * p}) {
      if (m < 1) continue;
      CAPTURE(p, m);
      const PipelineSchedule schedule = make_schedule(ScheduleKind::zb_v, {p, m, 2});
      require_valid(schedule);
      const Played played = play(schedule, equal_stages(schedule, 2 * tick, 2 * tick, 2 * tick));
      for (int stage = 0; stage < p; ++stage) {
        const auto s = static_cast<size_t>(stage);
        // The first chunk holds a micro-batch for longer the earlier its stage is, the second one for less long. The
        // sum is 1F1B's p micro-batches of a whole stage, and memory for it is allocated by chunk.
        CHECK(peak_in_flight(schedule, stage, 0) == std::min(m, 2 * p - 1 - stage));
        CHECK(peak_in_flight(schedule, stage, 1) == std::min(m, stage + 1));
        CHECK(peak_in_flight(schedule, stage) <= 2 * p);
        // A stage cannot begin before the first micro-batch has come down to it: with these two, no step is shorter.
        CHECK(played.stages[s].front().begin_ns == stage * tick);
        if (m >= 2 * p - 1) CHECK(played.stages[s].back().end_ns == (stage + 6 * m) * tick);
      }
      if (m >= 2 * p - 2) CHECK(played.bubble() == Approx(static_cast<double>(p - 1) / (6 * m)));
      // With fewer micro-batches than fill the pipeline it is at least as fast as ZB-H1.
      const PipelineSchedule other = make_schedule(ScheduleKind::zb_h1, {p, m, 1});
      CHECK(played.makespan_ns <= play(other, equal_stages(other, 2 * tick, 2 * tick, 2 * tick)).makespan_ns);
    }
  // Passes that differ by a fifth leave its step shorter than that of ZB-H1.
  for (const auto& [f, b, w] : {std::tuple<int64_t, int64_t, int64_t>{100, 120, 80}, {100, 110, 90}, {100, 80, 80}})
    for (int p : {2, 4, 8}) {
      CAPTURE(f, b, w, p);
      const PipelineSchedule folded = make_schedule(ScheduleKind::zb_v, {p, 4 * p, 2}),
                             plain = make_schedule(ScheduleKind::zb_h1, {p, 4 * p, 1});
      CHECK(play(folded, equal_stages(folded, f, b, w)).makespan_ns <
            play(plain, equal_stages(plain, f, b, w)).makespan_ns);
    }
}

TEST_CASE("transfers of up to half a forward pass are hidden at the cost of one more live micro-batch per later stage",
          "[schedule]") {
  constexpr int64_t f = 1200;
  for (ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zb_h1, ScheduleKind::interleaved_1f1b})
    for (int p : {2, 4, 8})
      for (int64_t hop : {f / 8, f / 4, f / 2}) {
        const int m = 8 * p, v = kind == ScheduleKind::interleaved_1f1b ? 2 : 1;
        ScheduleShape shape{p, m, v};
        const auto span = [&](int64_t transfer_ns) {
          const PipelineSchedule schedule = make_schedule(kind, shape);
          PlayTimes times = equal_stages(schedule, f, f, f);
          times.transfer_ns = [=](int, const Action&) { return transfer_ns; };
          return play(schedule, times).makespan_ns;
        };
        const int64_t without = span(0), waiting = span(hop);
        shape.hides_transfers = true;
        // Transfers of the first micro-batch forward and of the last one back have nothing to hide under.
        const int64_t hidden = span(hop) - 2 * (p * v - 1) * hop;
        CAPTURE(name_of(kind), p, hop, without, waiting, hidden);
        CHECK(static_cast<double>(hidden) < 1.02 * static_cast<double>(without));
        if (kind == ScheduleKind::one_f_one_b)
          CHECK(static_cast<double>(waiting - 2 * (p - 1) * hop) > 1.02 * static_cast<double>(without));
        for (int stage = 0; stage < p; ++stage)
          if (v == 1 && kind != ScheduleKind::zb_h1)
            CHECK(peak_in_flight(make_schedule(kind, shape), stage) == 2 * (p - stage) - 1);
      }
}

TEST_CASE("chunks that end early reduce at once if no item waits for the result", "[schedule]") {
  constexpr int64_t f = 1200;
  const auto off = [&](ScheduleKind kind, int p, int stage, int v, int64_t reduce_ns) {
    const PipelineSchedule schedule = make_schedule(kind, {p, 4 * p, v});
    return off_critical_path(schedule, play(schedule, equal_stages(schedule, f, f, f)), stage,
                             [&](int) { return reduce_ns; });
  };
  for (ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b})
    for (int stage = 0; stage < 4; ++stage) {
      // Stage s ends s backward passes before the first stage.
      CHECK(off(kind, 4, stage, 1, stage * 2 * f) == std::vector<char>{1});
      CHECK(off(kind, 4, stage, 1, stage * 2 * f + 1) == std::vector<char>{0});
    }
  // Zero-bubble stages fill that time with weight gradients, and end with the first stage.
  for (int stage = 0; stage < 4; ++stage) CHECK(off(ScheduleKind::zb_h1, 4, stage, 1, 1) == std::vector<char>{0});
  // The second chunk of an interleaved stage has time to reduce until the first chunk makes gradients: the backward
  // passes of four micro-batches, less its own.
  for (int stage = 0; stage < 4; ++stage) {
    const std::vector<char> early = off(ScheduleKind::interleaved_1f1b, 4, stage, 2, f / 2);
    CHECK(early[1] == 1);
    CHECK(early[0] == (stage > 0));
    CHECK(off(ScheduleKind::interleaved_1f1b, 4, stage, 2, 100 * f) == std::vector<char>{0, 0});
  }
}

TEST_CASE(
    "random schedules are valid, keep the theoretical number of micro-batches alive, and begin each pass as soon as "
    "its stage and input are ready",
    "[schedule]") {
  const uint64_t seed = 52;
  std::printf("  seed %llu\n", static_cast<unsigned long long>(seed));
  const Philox random(seed, "schedules");
  uint64_t drawn = 0;
  const auto draw = [&](int bound) { return static_cast<int>(random.below(drawn++, static_cast<uint64_t>(bound))); };
  for (int round = 0; round < 400; ++round) {
    const ScheduleKind kind = kKinds[draw(5)];
    const int p = 1 + draw(6);
    const bool folds = kind == ScheduleKind::zb_v, goes_round = kind == ScheduleKind::interleaved_1f1b;
    const int v = goes_round && p > 1 ? 1 + draw(3) : folds ? 2 : 1;
    const int m = goes_round && v > 1 ? p * (1 + draw(4)) : 1 + draw(12);
    CAPTURE(name_of(kind), p, m, v);
    const PipelineSchedule schedule = make_schedule(kind, {p, m, v});
    require_valid(schedule);
    for (int stage = 0; stage < p; ++stage) {
      const int peak = peak_in_flight(schedule, stage);
      if (kind == ScheduleKind::gpipe) CHECK(peak == m);
      if (v == 1 && kind != ScheduleKind::gpipe && kind != ScheduleKind::zb_h1) CHECK(peak == std::min(m, p - stage));
      // Later stages hold a micro-batch until its weight gradient is computed: as many micro-batches as the first stage
      // holds.
      if (kind == ScheduleKind::zb_h1) CHECK(peak == std::min(m, p));
      if (goes_round && v > 1) CHECK(peak == std::min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1));
      for (int chunk = 0; chunk < v; ++chunk)
        CHECK(least_in_flight(kind, schedule.shape, stage) <= peak_in_flight(schedule, stage, chunk));
    }
    const uint64_t drawn_before = drawn += 1'000'000;
    const auto ns_of = [&](int stage, const Action& action,
                           uint64_t what) {  // the answer is the same whenever it is asked
      const auto at = static_cast<uint64_t>(((stage * 3 + static_cast<int>(action.pass)) * 3 + action.chunk) * 64 +
                                            action.micro_batch);
      return static_cast<int64_t>(random.below(drawn_before + 2 * at + what, 1000));
    };
    const auto action_ns = [&](int stage, const Action& action) { return 1 + ns_of(stage, action, 0); };
    const auto transfer_ns = [&](int stage, const Action& action) { return ns_of(stage, action, 1); };
    const Played played = play(schedule, {.action_ns = action_ns, .transfer_ns = transfer_ns});
    const auto part_of = [&](int s, int chunk) { return folds && chunk == 1 ? 2 * p - 1 - s : chunk * p + s; };
    const auto stage_of = [&](int part) { return folds && part >= p ? 2 * p - 1 - part : part % p; };
    std::map<std::tuple<Pass, int, int>, int64_t> end_ns;  // by part and micro-batch
    for (int s = 0; s < p; ++s) {
      const auto& order = schedule.stages[static_cast<size_t>(s)];
      const auto& spans = played.stages[static_cast<size_t>(s)];
      REQUIRE(spans.size() == order.size());
      for (size_t i = 0; i < order.size(); ++i)
        end_ns[{order[i].pass, part_of(s, order[i].chunk), order[i].micro_batch}] = spans[i].end_ns;
    }
    for (int s = 0; s < p; ++s) {
      const auto& order = schedule.stages[static_cast<size_t>(s)];
      const auto& spans = played.stages[static_cast<size_t>(s)];
      for (size_t i = 0; i < order.size(); ++i) {
        const Action& action = order[i];
        const int part = part_of(s, action.chunk), last = p * v - 1;
        // The input comes from the previous or the next part, with its transfer, or from this stage without one.
        const auto from = [&](Pass pass, int of_part) {
          const Action other{pass, of_part / p, action.micro_batch};
          return end_ns.at({pass, of_part, action.micro_batch}) +
                 (stage_of(of_part) == s ? 0 : transfer_ns(stage_of(of_part), other));
        };
        const int64_t input_ns = action.pass == Pass::weight    ? from(Pass::backward, part)
                                 : action.pass == Pass::forward ? (part == 0 ? 0 : from(Pass::forward, part - 1))
                                 : part == last                 ? from(Pass::forward, part)
                                                                : from(Pass::backward, part + 1);
        const int64_t free_ns = i == 0 ? 0 : spans[i - 1].end_ns;
        CHECK(spans[i].begin_ns == std::max(free_ns, input_ns));
        CHECK(spans[i].end_ns == spans[i].begin_ns + action_ns(s, action));
      }
    }
  }
}

namespace {

using StageTimes = std::vector<std::array<int64_t, 3>>;  // of each stage, by pass

/// A backward that is not split computes both halves at once.
PlayTimes unequal_stages(const StageTimes& ns, bool split, int64_t transfer_ns) {
  return {.action_ns =
              [=](int stage, const Action& action) {
                const auto& of = ns[static_cast<size_t>(stage)];
                return of[static_cast<size_t>(action.pass)] + (action.pass == Pass::backward && !split ? of[2] : 0);
              },
          .transfer_ns = [=](int, const Action&) { return transfer_ns; }};
}

struct Chosen {
  std::vector<int> lags;
  int64_t chosen_ns = 0, published_ns = 0, one_f_one_b_ns = 0;
};

/// Chooses lags, and checks the promises of every choice.
Chosen choose(const ScheduleShape& shape, const StageTimes& ns, int64_t transfer_ns) {
  const auto span_ns = [&](const PipelineSchedule& schedule) {
    return play(schedule, unequal_stages(ns, schedule.splits_backward, transfer_ns)).makespan_ns;
  };
  ScheduleShape asked = shape;
  asked.lags = best_lags(shape, unequal_stages(ns, true, transfer_ns));
  CHECK(asked.lags == best_lags(shape, unequal_stages(ns, true, transfer_ns)));
  const PipelineSchedule chosen = make_schedule(ScheduleKind::zb_h1, asked),
                         plain = make_schedule(ScheduleKind::one_f_one_b, shape);
  require_valid(chosen);
  for (int stage = 0; stage < shape.stages; ++stage) CHECK(peak_in_flight(chosen, stage) <= peak_in_flight(plain, 0));
  const Chosen found{.lags = asked.lags,
                     .chosen_ns = span_ns(chosen),
                     .published_ns = span_ns(make_schedule(ScheduleKind::zb_h1, shape)),
                     .one_f_one_b_ns = span_ns(plain)};
  CHECK(found.chosen_ns <= found.published_ns);
  CHECK(found.chosen_ns <= found.one_f_one_b_ns);
  CHECK((found.lags.empty() || found.chosen_ns < found.published_ns));
  return found;
}

}  // namespace

TEST_CASE("ZB-H1 keeps the published lags for equal stages, with a third of the bubble of 1F1B for equal passes",
          "[schedule]") {
  for (int p : {1, 2, 3, 4, 8})
    for (int m : {1, p, 2 * p, 5 * p})
      for (int64_t w : {1, 400, 1200, 5000, 100'000}) {
        CAPTURE(p, m, w);
        const Chosen chosen = choose({p, m, 1}, StageTimes(static_cast<size_t>(p), {1200, 1200, w}), 0);
        CHECK(chosen.lags.empty());
        if (w == 1200 && m >= p) CHECK(chosen.chosen_ns == 3 * 1200 * m + (p - 1) * 1200);
      }
}

TEST_CASE("ZB-H1 takes its lags from pass times, and then ends earlier than with published lags", "[schedule]") {
  // The second micro-batch is late: the last stage has time for the weights of the first one, and as published it
  // waits.
  const Chosen early = choose({2, 2, 1}, {{100, 10, 10}, {10, 10, 80}}, 0);
  CHECK(early.lags == std::vector<int>{0, 0});
  CHECK(early.published_ns == 380);
  CHECK(early.chosen_ns == 300);
  // More micro-batches in flight, for transfers, are places in which short weight gradients may lag further.
  const ScheduleShape hops{.stages = 4, .micro_batches = 16, .hides_transfers = true};
  const Chosen further = choose(hops, StageTimes(4, {100, 110, 5}), 10);
  CHECK(further.lags == std::vector<int>{0, 2, 4, 6});
  CHECK(further.chosen_ns < further.published_ns);
}

TEST_CASE("ZB-H1 with random times: never longer than with published lags or 1F1B, and never more micro-batches alive",
          "[schedule]") {
  const uint64_t seed = 53;
  std::printf("  seed %llu\n", static_cast<unsigned long long>(seed));
  const Philox random(seed, "lags");
  uint64_t drawn = 0;
  const auto draw = [&](int bound) { return static_cast<int>(random.below(drawn++, static_cast<uint64_t>(bound))); };
  int differ = 0;
  double most = 0;
  for (int round = 0; round < 300; ++round) {
    const ScheduleShape shape{.stages = 1 + draw(6), .micro_batches = 1 + draw(16), .hides_transfers = draw(2) == 1};
    const int scale[] = {1 + draw(1000), 1 + draw(1000), 1 + draw(1000)};
    StageTimes ns(static_cast<size_t>(shape.stages));
    for (auto& of : ns)
      for (size_t pass = 0; pass < 3; ++pass) of[pass] = 1 + draw(2 * scale[pass]);
    CAPTURE(round, shape.stages, shape.micro_batches, shape.hides_transfers);
    const Chosen chosen = choose(shape, ns, draw(3) == 0 ? 0 : draw(200));
    differ += !chosen.lags.empty();
    most = std::max(most, 1 - static_cast<double>(chosen.chosen_ns) / static_cast<double>(chosen.published_ns));
  }
  std::printf("  %d of 300 differ from what was published, by up to %.1f %% of the step\n", differ, 100 * most);
  CHECK(differ > 30);
}

TEST_CASE("mutations of a schedule are refused by name", "[schedule]") {
  for (ScheduleKind kind : kKinds) {
    const PipelineSchedule good = make_schedule(kind, {3, 6, chunks_of(kind) == 1 ? 1 : 2});
    for (size_t s = 0; s < 3; ++s)
      for (size_t i = 0; i < good.stages[s].size(); ++i) {
        CAPTURE(name_of(kind), s, i);
        PipelineSchedule missing = good, twice = good;
        missing.stages[s].erase(missing.stages[s].begin() + static_cast<std::ptrdiff_t>(i));
        CHECK(refusal([&] { require_valid(missing); }).find("is missing.") != std::string::npos);
        twice.stages[s].push_back(twice.stages[s][i]);
        CHECK(refusal([&] { require_valid(twice); }).find("appears twice, as number ") != std::string::npos);
      }
  }
  PipelineSchedule swapped = make_schedule(ScheduleKind::gpipe, {2, 3, 1});
  std::swap(swapped.stages[1][0], swapped.stages[1][1]);
  CHECK(
      refusal([&] { require_valid(swapped); }) ==
      "[pipeline] stage 1: forward of micro-batch 1 comes before that of micro-batch 0. Micro-batches of a chunk must "
      "be in order, so that sums do not depend on the schedule.");
  // The first stage needs a gradient back before it sends the micro-batch that the last one needs first.
  PipelineSchedule stuck{
      .shape = {2, 2, 1},
      .placement = StagePlacement::round(2, 1),
      .stages = {{{Pass::forward, 0, 0}, {Pass::backward, 0, 0}, {Pass::forward, 0, 1}, {Pass::backward, 0, 1}},
                 {{Pass::forward, 0, 0}, {Pass::forward, 0, 1}, {Pass::backward, 0, 0}, {Pass::backward, 0, 1}}}};
  CHECK(refusal([&] { require_valid(stuck); }) ==
        "[pipeline] the schedule never ends. These wait for each other: stage 0: backward of micro-batch 0; stage 1: "
        "forward of micro-batch 1.");
  CHECK(refusal([] {
          make_schedule(ScheduleKind::interleaved_1f1b, {4, 10, 2});
        }) ==
        "[pipeline] interleaved_1f1b needs a multiple of 4 micro-batches per step, got 10. Change "
        "train.global_batch_size so that a rank has 8 or 12.");
  CHECK(refusal([] { make_schedule(ScheduleKind::gpipe, {4, 8, 2}); }).find("virtual_stages = 2") != std::string::npos);
  CHECK(refusal([] {
          make_schedule(ScheduleKind::zb_v, {4, 8, 3});
        }) ==
        "[pipeline] schedule zb_v has two chunks per stage, got virtual_stages = 3. Use \"interleaved_1f1b\", or "
        "virtual_stages = 2.");
}

TEST_CASE("a schedule reads back from its CSV, in any order of the lines", "[schedule]") {
  for (ScheduleKind kind : kKinds) {
    const PipelineSchedule schedule = make_schedule(kind, {3, 6, chunks_of(kind) == 1 ? 1 : 2});
    const std::string csv = schedule_csv(schedule);
    CHECK(parse_schedule(csv, schedule.shape, "a.csv").stages == schedule.stages);
    CHECK(parse_schedule(csv, schedule.shape, "a.csv").splits_backward == schedule.splits_backward);
    const size_t head = csv.find('\n') + 1, cut = csv.find('\n', csv.size() / 2) + 1;
    CHECK(parse_schedule(csv.substr(0, head) + csv.substr(cut) + csv.substr(head, cut - head), schedule.shape, "a.csv")
              .stages == schedule.stages);
  }
  const ScheduleShape shape{1, 1, 1};
  const std::string head = "stage,position,pass,chunk,micro_batch\n";
  CHECK(refusal([&] { parse_schedule("stage\n", shape, "a.csv"); }) ==
        "[pipeline] a.csv: the first line is \"stage\", expected \"stage,position,pass,chunk,micro_batch\".");
  // Any other file is shown in part and in printable characters; a number that is not an int is refused.
  CHECK(refusal([&] { parse_schedule("\x1b[31m" + std::string(100, 'x'), shape, "a.csv"); }) ==
        "[pipeline] a.csv: the first line is \"\\x1b[31m" + std::string(75, 'x') +
            "...\", expected \"stage,position,pass,chunk,micro_batch\".");
  for (const char* row :
       {"4294967296,0,F,0,0", "0,99999999999999999999,F,0,0", "0,0,F,0,", "0,0,F,0,0,", " 0,0,F,0,0", "0,0,FF,0,0"})
    CHECK(refusal([&] { parse_schedule(head + row + "\n", shape, "a.csv"); }) ==
          std::string("[pipeline] a.csv, line 2: \"") + row +
              "\" is not stage,position,pass,chunk,micro_batch with pass F, B or W.");
  CHECK(refusal([&] { parse_schedule(head + "0,0,F,0,0\n0,1,B,0\n", shape, "a.csv"); }) ==
        "[pipeline] a.csv, line 3: \"0,1,B,0\" is not stage,position,pass,chunk,micro_batch with pass F, B or W.");
  CHECK(refusal([&] { parse_schedule(head + "0,0,F,0,0\n1,1,B,0,0\n", shape, "a.csv"); }) ==
        "[pipeline] a.csv, line 3: stage 1 does not exist: this run has 1, numbered from 0. Change "
        "parallel.pipeline, or write the file again with plan --schedule-csv.");
  for (const auto& [row, words] : {std::pair{"0,0,F,1,0", "chunk 1 does not exist: this run has 1"},
                                   {"0,0,F,-1,0", "chunk -1 does not exist: this run has 1"},
                                   {"0,0,F,0,1", "micro-batch 1 does not exist: this run has 1"}})
    CHECK(refusal([&] { parse_schedule(head + row + "\n", shape, "a.csv"); }).find(words) != std::string::npos);
  CHECK(refusal([&] { parse_schedule(head + "0,-7,F,0,0\n0,1,B,0,0\n", shape, "a.csv"); }) ==
        "[pipeline] a.csv: the positions of stage 0 go from -7 to 1, but it has 2 rows. Number them from 0 to 1, or "
        "write the file again with plan --schedule-csv.");
  CHECK(refusal([&] {
          parse_schedule(head + "0,0,F,0,0\n0,2,B,0,0\n", shape, "a.csv");
        }).find("go from 0 to 2, but it has 2 rows") != std::string::npos);
  CHECK(refusal([&] { parse_schedule(head + "0,0,F,0,0\n0,0,B,0,0\n", shape, "a.csv"); }) ==
        "[pipeline] a.csv, line 3: stage 0 has two actions at position 0.");
  CHECK(refusal([&] { parse_schedule(head + "0,0,F,0,0\n", shape, "a.csv"); }) ==
        "[pipeline] stage 0: backward of micro-batch 0 is missing. The schedule comes from a.csv; this run needs 1 "
        "micro-batches on 1 stages x 1 chunks. Correct it, or write the file again with plan --schedule-csv.");
  // Rows that name parts place them.
  const ScheduleShape folded{2, 1, 2};
  const std::string parts = "stage,position,pass,part,micro_batch\n",
                    down = "0,0,F,0,0\n0,1,F,3,0\n0,2,B,3,0\n0,3,B,0,0\n1,0,F,1,0\n";
  const PipelineSchedule read = parse_schedule(parts + down + "1,1,F,2,0\n1,2,B,2,0\n1,3,B,1,0\n", folded, "a.csv");
  CHECK(read.placement.part(0, 1) == 3);
  CHECK(read.placement.part(1, 0) == 1);
  CHECK(read.stages[0][1] == Action{Pass::forward, 1, 0});
  CHECK(schedule_csv(read) == parts + down + "1,1,F,2,0\n1,2,B,2,0\n1,3,B,1,0\n");
  CHECK(refusal([&] { parse_schedule(parts + down + "1,1,F,3,0\n", folded, "a.csv"); }) ==
        "[pipeline] a.csv, line 7: part 3 is on stage 0 and on stage 1. Give each part one stage.");
  CHECK(refusal([&] { parse_schedule(parts + down, folded, "a.csv"); }) ==
        "[pipeline] a.csv: no stage runs part 2 of 4. Add its passes, or write the file again with plan "
        "--schedule-csv.");
  CHECK(refusal([&] {
          parse_schedule(parts + "0,0,F,4,0\n", folded, "a.csv");
        }).find("part 4 does not exist: this run has 4") != std::string::npos);
}

TEST_CASE("the table shows stage by time", "[schedule]") {
  const PipelineSchedule schedule = make_schedule(ScheduleKind::one_f_one_b, {2, 2, 1});
  CHECK(schedule_table(schedule, play(schedule, equal_stages(schedule, 1, 1, 1)), 1) ==
        "stage 0   F0 F1 .  .  B0 -  .  B1 -\n"
        "stage 1   .  F0 B0 -  F1 B1 -  .  .\n");
  const std::string whole = schedule_table(schedule, play(schedule, equal_stages(schedule, 1, 1, 1)), 1);
  CHECK(schedule_table(schedule, play(schedule, equal_stages(schedule, 1, 1, 1)), 1, 5) == whole);
  CHECK(schedule_table(schedule, play(schedule, equal_stages(schedule, 1, 1, 1)), 1, 4) ==
        "stage 0   F0 F1 .  .  ... -  .  B1 -\n"
        "stage 1   .  F0 B0 -  ... B1 -  .  .\n");
  CHECK(schedule_table(schedule, play(schedule, equal_stages(schedule, 1, 1, 1)), 1, 1) ==
        "stage 0   F0 ... -\n"
        "stage 1   .  ... .\n");
}

TEST_CASE("a placement numbers the parts of every stage, and every part's successor is on a wire or on the stage",
          "[schedule]") {
  std::mt19937_64 random(31);
  for (int round = 0; round < 200; ++round) {
    const ScheduleShape shape{.stages = 1 + static_cast<int>(random() % 4),
                              .virtual_stages = 1 + static_cast<int>(random() % 3)};
    const StagePlacement placement = random_placement(shape, random);
    REQUIRE(placement.parts() == shape.stages * shape.virtual_stages);
    std::vector<int> next_chunk(static_cast<size_t>(shape.stages), 0);
    for (int part = 0; part < placement.parts(); ++part) {
      const int stage = placement.stage_of(part);
      CHECK(placement.part(stage, next_chunk[static_cast<size_t>(stage)]++) == part);
      if (part + 1 == placement.parts()) continue;
      CHECK((stage + placement.hop_after(part) + shape.stages) % shape.stages == placement.stage_of(part + 1));
    }
    CHECK(placement.ends_apart() == (placement.stage_of(0) != placement.stage_of(placement.parts() - 1)));
  }
  for (int stages : {1, 2, 3, 5})
    for (int chunks : {1, 2, 3}) {
      const StagePlacement placement = StagePlacement::round(stages, chunks);
      for (int part = 0; part < stages * chunks; ++part) CHECK(placement.stage_of(part) == part % stages);
    }
  CHECK(refusal([] {
          StagePlacement({0, 2, 1, 3});
        }) ==
        "[pipeline] part 0 of the model is on stage 0 and part 1 on stage 2 of 4. Place consecutive parts on one stage "
        "or on neighbours.");
  CHECK(refusal([] {
          StagePlacement({0, 1, 1, 2});
        }) == "[pipeline] stage 0 has 1 of 4 parts of the model. Give each of 3 stages the same number.");
  CHECK(refusal([] {
          StagePlacement({1, 0});
        }) == "[pipeline] the first part of the model is on stage 1. Place it on stage 0.");
}
