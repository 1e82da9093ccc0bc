// SPDX-License-Identifier: Apache-2.0
// Delays are put into the timelines of imitated jobs; the detector must name the rank and the cause, and nothing in
// jobs that are merely noisy. Timelines pass through the code that measures real runs.

#include "engine/report/stragglers.h"

#include <time.h>

#include <random>

#include "engine/base/check.h"
#include "engine/base/median.h"
#include "engine/base/thread_usage.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

constexpr int64_t kMs = 1'000'000;
enum : uint32_t { kCompute, kInput, kReduce };
constexpr uint32_t kLayers = 6, kLoad = kLayers, kTask = kLayers + 1, kItems = kLayers + 2;

/// What the test does to one rank.
struct Delay {
  int rank = 0;
  Cause cause = Cause::compute;
  int64_t first = 0, last = 0;  // steps in which it is done
  double ms = 0;                // added in each of them
};

struct Noise {
  double spread = 0.02;       // standard deviation of the logarithm of each duration
  double spikes = 0;          // share of durations that are up to six times as long
  double busy_phase = 1;      // factor on all ranks in steps 60 to 90
  double clock_error_ms = 0;  // error of each rank's clock
  bool late_host = false;     // hosts issue late by up to a tenth of a step
};

/// Ranks meet in one task per step. Ranks of different stages have different works, of which one layer is equal.
class ImitatedJob {
 public:
  ImitatedJob(int ranks, int stages, const Noise& noise, uint64_t seed)
      : ranks_(static_cast<size_t>(ranks)),
        noise_(noise),
        random_(seed),
        ready_(ranks_, 0),
        task_end_(ranks_, 0),
        staged_(ranks_, 0),
        meters_(ranks_, OverlapMeter({ChannelKind::compute, ChannelKind::input, ChannelKind::communication})) {
    for (size_t r = 0; r < ranks_; ++r) {
      stage_.push_back(static_cast<int>(r) * stages / ranks);
      std::vector<std::string> texts;
      std::vector<Cause> causes;
      for (uint32_t item = 0; item < kItems; ++item) {
        texts.push_back(item == kLoad   ? "load"
                        : item == kTask ? "all_reduce"
                        : item == 0     ? "layer"
                                        : "layer of stage " + std::to_string(stage_[r]));
        causes.push_back(item == kLoad ? Cause::input : item == kTask ? Cause::link : Cause::compute);
      }
      kinds_.add(texts, causes);
      graph_.rendezvous_ids.assign(kItems, 1);
      clock_ns_.push_back(static_cast<int64_t>(noise.clock_error_ms * kMs * (uniform() * 2 - 1)));
    }
  }

  /// Runs `steps` steps and returns the reports of a detector.
  std::vector<Straggler> run(int64_t steps, const std::vector<Delay>& delays, double threshold = 0.1) {
    StragglerDetector detector(static_cast<int>(ranks_), threshold);
    std::vector<Straggler> found;
    const auto take = [&](const std::vector<Straggler>& more) { found.insert(found.end(), more.begin(), more.end()); };
    step(1, delays);
    for (int64_t s = 1; s <= steps; ++s) {
      step(s + 1, delays);
      take(detector.add(sample(static_cast<uint32_t>(s))));
    }
    take(detector.finish());
    return found;
  }

 private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  int64_t noisy_ns(double ms, int64_t step) {
    double factor = std::exp(std::normal_distribution<double>(0, noise_.spread)(random_));
    if (uniform() < noise_.spikes) factor *= 1 + 5 * uniform();
    if (step >= 60 && step < 90) factor *= noise_.busy_phase;
    return static_cast<int64_t>(ms * factor * kMs);
  }
  static int64_t delay_ns(const std::vector<Delay>& delays, size_t rank, Cause cause, int64_t step) {
    double ms = 0;
    for (const Delay& d : delays)
      if (static_cast<size_t>(d.rank) == rank && d.cause == cause && step >= d.first && step <= d.last) ms += d.ms;
    return static_cast<int64_t>(ms * kMs);
  }

  void step(int64_t number, const std::vector<Delay>& delays) {
    const auto step = static_cast<uint32_t>(number);
    std::vector<int64_t> entry(ranks_), link(ranks_);
    int64_t last = 0, longest = 0;
    const auto delayed = static_cast<uint32_t>(uniform() * kLayers);
    for (size_t r = 0; r < ranks_; ++r) {
      std::vector<Span> compute;
      int64_t now = ready_[r];
      const auto wait = [&](uint32_t channel, uint32_t item, int64_t until) {
        if (until <= now) return;
        compute.push_back({.kind = Span::Kind::wait,
                           .awaited = uint64_t{channel} << 32 | item,
                           .item = 0,
                           .step = step,
                           .begin_ns = now,
                           .end_ns = until});
        now = until;
      };
      wait(kReduce, kTask, task_end_[r]);
      wait(kInput, kLoad, staged_[r]);
      now += delay_ns(delays, r, Cause::host, number);
      if (noise_.late_host) now += static_cast<int64_t>(10 * uniform() * kMs);
      const int64_t load_ns = noisy_ns(0.2, number) + delay_ns(delays, r, Cause::input, number);
      meters_[r].add(kInput, {{.item = kLoad, .step = step, .begin_ns = now, .end_ns = now + load_ns}});
      staged_[r] = now + load_ns;
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        // The layers of later stages have more work; the first one is equal.
        int64_t ns = noisy_ns(layer == 0 ? 15 : 15 + 10 * stage_[r], number);
        if (layer == delayed) ns += delay_ns(delays, r, Cause::compute, number);
        compute.push_back({.item = layer, .step = step, .begin_ns = now, .end_ns = now + ns});
        now += ns;
      }
      meters_[r].add(kCompute, compute);
      ready_[r] = entry[r] = now;
      link[r] = noisy_ns(8, number) + delay_ns(delays, r, Cause::link, number);
      last = std::max(last, now);
      longest = std::max(longest, link[r]);
    }
    for (size_t r = 0; r < ranks_; ++r) {
      task_end_[r] = last + longest;  // a sum is complete when the slowest member's part is
      meters_[r].add(kReduce,
                     {{.item = kTask, .step = step, .begin_ns = entry[r], .end_ns = task_end_[r], .link_ns = link[r]}});
    }
  }

  OwnSample sample(uint32_t step) {
    std::vector<StepTimes> times;
    std::vector<OwnTimes> own;
    for (size_t r = 0; r < ranks_; ++r) {
      times.push_back(meters_[r].take(step, true));
      own.push_back(own_times(times.back(), kinds_, static_cast<int>(r), 0, std::vector<int64_t>(kItems, -1)));
      for (TaskTime& task : times.back().tasks) task.begin_ns += clock_ns_[r], task.end_ns += clock_ns_[r];
    }
    std::vector<RankStep> together;
    double step_ms = 0;
    for (StepTimes& t : times) {
      together.push_back({&t, &graph_});
      step_ms += static_cast<double>(t.step_ns) / kMs / static_cast<double>(ranks_);
    }
    add_links(own, together, kinds_);
    return sample_of(step, step_ms, own, kinds_);
  }

  size_t ranks_;
  Noise noise_;
  std::mt19937_64 random_;
  std::vector<int> stage_;
  std::vector<int64_t> ready_, task_end_, staged_, clock_ns_;
  std::vector<OverlapMeter> meters_;
  OwnKinds kinds_;
  PlanGraph graph_;
};

const Noise kQuiet{};
const Noise kHeavy{.spread = 0.3, .spikes = 0.03, .busy_phase = 2, .clock_error_ms = 0.5, .late_host = true};

std::string text_of(const std::vector<Straggler>& found) {
  std::string text;
  for (const Straggler& s : found)
    text += fmt::format("rank {} {} since {} to {}: {:.0f} ms in {} steps, score {:.2f}\n", s.rank, name_of(s.cause),
                        s.since, s.step, s.late_ms, s.steps, s.score);
  return text;
}

/// Checks that the reports name the delay, and nothing else.
void check_named(const std::vector<Straggler>& found, const Delay& delay) {
  INFO(text_of(found));
  REQUIRE(!found.empty());
  for (const Straggler& s : found) {
    CHECK(s.rank == delay.rank);
    CHECK(s.cause == delay.cause);
    CHECK(s.step >= delay.first);
  }
  CHECK(found[0].step <= delay.last + 2);
  CHECK(found[0].since >= std::min<int64_t>(delay.first - 2, 1));
}

constexpr Cause kInjected[] = {Cause::compute, Cause::link, Cause::input, Cause::host};

}  // namespace

TEST_CASE("A rank that is late once by much is named with its cause, under noise and clock errors") {
  const uint64_t seed = GENERATE(range(0, test_everything() ? 200 : 40));
  const bool heavy = seed % 2 == 1;
  std::mt19937_64 random(seed);
  const int ranks = 2 + static_cast<int>(random() % 7), stages = 1 + static_cast<int>(random() % 2);
  const Cause cause = kInjected[seed / 2 % 4];
  const auto at = static_cast<int64_t>(2 + random() % 110);
  const Delay delay{static_cast<int>(random() % static_cast<uint64_t>(ranks)), cause, at, at, heavy ? 3000. : 1000.};
  CAPTURE(seed, ranks, stages, name_of(cause), delay.rank, at, heavy);
  check_named(ImitatedJob(ranks, stages, heavy ? kHeavy : kQuiet, seed).run(120, {delay}), delay);
}

TEST_CASE("A rank that is slower for many steps is named with its cause, from the start as well") {
  const uint64_t seed = GENERATE(range(0, test_everything() ? 200 : 40));
  const bool heavy = seed % 2 == 1;
  std::mt19937_64 random(seed + 1000);
  const int ranks = 2 + static_cast<int>(random() % 7);
  // If no other rank does the same, a stage is compared with its own past.
  const int stages = 1 + static_cast<int>(random() % 2);
  const bool has_peers = ranks >= 2 * stages;
  const Cause cause = kInjected[seed / 2 % 4];
  const auto at = static_cast<int64_t>(has_peers && random() % 2 == 0 ? 1 : 40 + random() % 20);
  // 90 ms of work become 5.4 times as slow with 400 ms more, and 1.5 times with 50. The first of two stages has 50 ms
  // to spare.
  const double slower_ms = heavy ? 400 : 50 * stages;
  const Delay delay{static_cast<int>(random() % static_cast<uint64_t>(ranks)), cause, at, 200, slower_ms};
  CAPTURE(seed, ranks, stages, name_of(cause), delay.rank, at, heavy);
  const std::vector<Straggler> found = ImitatedJob(ranks, stages, heavy ? kHeavy : kQuiet, seed).run(200, {delay});
  check_named(found, delay);
  CHECK(found.size() <= 2);  // once in kQuietSteps
  CHECK(found[0].score < 0.9);
}

TEST_CASE("A run without delays has no stragglers, however noisy it is") {
  const uint64_t seed = GENERATE(range(0, test_everything() ? 200 : 80));
  std::mt19937_64 random(seed + 2000);
  const int ranks = 1 + static_cast<int>(random() % 8), stages = 1 + static_cast<int>(random() % 3);
  CAPTURE(seed, ranks, stages);
  Noise noise = seed % 2 == 1 ? kHeavy : kQuiet;
  if (ranks == 1) noise.busy_phase = 1;  // one rank's past cannot tell a busy machine from a slow rank
  const auto found = ImitatedJob(ranks, std::min(stages, ranks), noise, seed).run(150, {});
  INFO(text_of(found));
  CHECK(found.empty());
}

TEST_CASE("A run of one rank is compared with its own past") {
  for (Cause cause : {Cause::compute, Cause::input, Cause::host}) {
    const Delay delay{0, cause, 60, 200, 120};
    CAPTURE(name_of(cause));
    check_named(ImitatedJob(1, 1, kQuiet, 5).run(200, {delay}), delay);
  }
}

TEST_CASE("Two stragglers in one run are both named") {
  const Delay slow{1, Cause::compute, 1, 200, 60}, late{2, Cause::link, 70, 70, 2000};
  const std::vector<Straggler> found = ImitatedJob(4, 1, kQuiet, 9).run(200, {slow, late});
  INFO(text_of(found));
  bool has_slow = false, has_late = false;
  for (const Straggler& s : found) {
    has_slow = has_slow || (s.rank == 1 && s.cause == Cause::compute);
    has_late = has_late || (s.rank == 2 && s.cause == Cause::link && s.since == 70);
    CHECK(((s.rank == 1 && s.cause == Cause::compute) || (s.rank == 2 && s.cause == Cause::link)));
  }
  CHECK(has_slow);
  CHECK(has_late);
}

TEST_CASE("Lateness below the threshold and lateness of all ranks are no stragglers") {
  CHECK(ImitatedJob(4, 1, kQuiet, 3).run(300, {{1, Cause::compute, 1, 300, 5}}).empty());
  std::vector<Delay> all;
  for (int r = 0; r < 4; ++r) all.push_back({r, Cause::host, 50, 50, 3000});
  CHECK(ImitatedJob(4, 1, kQuiet, 3).run(100, all).empty());
}

TEST_CASE("A delay far beyond a step is named whole, although the other rank's short work took three times as long") {
  const auto sample = [](int64_t step, double own_ms, double other_ms) {
    OwnSample made{.step = step, .step_ms = own_ms + 1.5, .ranks = std::vector<OwnSample::OfRank>(2)};
    made.ranks[0].own[0] = own_ms, made.ranks[1].own[0] = other_ms;
    made.ranks[0].beyond[0] = own_ms - other_ms, made.ranks[1].beyond[0] = other_ms - own_ms;
    made.ranks[1].waited = own_ms;
    return made;
  };
  StragglerDetector detector(2, 0.1);
  for (int64_t step = 1; step < 20; ++step) CHECK(detector.add(sample(step, 0.5, 0.5)).empty());
  CHECK(detector.add(sample(20, 1000, 1.5)).empty());
  const std::vector<Straggler> found = detector.add(sample(21, 0.5, 0.5));
  REQUIRE(found.size() == 1);
  CHECK(found[0].rank == 0);
  CHECK(found[0].cause == Cause::compute);
  CHECK(found[0].late_ms == Approx(998).margin(10));
}

TEST_CASE("A stopped process is named once: late transfers and hosts that its stop explains are no stragglers") {
  constexpr auto kLink = static_cast<size_t>(Cause::link), kHost = static_cast<size_t>(Cause::host);
  const auto sample = [](int64_t step) {
    OwnSample made{.step = step, .step_ms = 3, .ranks = std::vector<OwnSample::OfRank>(3)};
    for (OwnSample::OfRank& rank : made.ranks) rank.own.fill(0.5), rank.waited = 1;
    return made;
  };
  const auto late = [](OwnSample& made, size_t rank, size_t cause, double ms) {
    made.ranks[rank].own[cause] += ms, made.ranks[rank].beyond[cause] += ms;
    made.step_ms += ms;
    for (OwnSample::OfRank& other : made.ranks) other.waited += ms;
  };
  // Rank 0 is stopped in step 20 for 2 s, of which 1.6 s are measured; other work is late in `step`.
  const auto run = [&](int64_t step, size_t rank, size_t cause, double ms) {
    StragglerDetector detector(3, 0.2);
    std::vector<Straggler> found;
    for (int64_t s = 1; s <= 400; ++s) {
      OwnSample made = sample(s);
      if (s == 20) made.ranks[0].stopped = 1600, late(made, 0, kHost, 1600);
      if (s == step) late(made, rank, cause, ms);
      for (const Straggler& one : detector.add(made)) found.push_back(one);
    }
    for (const Straggler& one : detector.finish()) found.push_back(one);
    return found;
  };
  for (int64_t step : {19, 20, 21, 25})
    for (const auto& [rank, cause] : {std::pair(size_t{0}, kLink), {size_t{1}, kLink}, {size_t{1}, kHost}}) {
      if (step == 20 && cause == kHost) continue;  // both hosts are late in one step: the machine's lateness
      const std::vector<Straggler> found = run(step, rank, cause, 2000);
      CAPTURE(step, rank, cause);
      INFO(text_of(found));
      REQUIRE(found.size() == 1);
      CHECK(found[0].rank == 0);
      CHECK(found[0].cause == Cause::host);
    }
  // What the stop does not explain is named: lateness at a later time, for longer, or for another cause.
  CHECK(run(40, 1, kLink, 2000).size() == 2);
  CHECK(run(21, 1, kHost, 6000).size() == 2);
  CHECK(run(21, 1, static_cast<size_t>(Cause::compute), 2000).size() == 2);
}

TEST_CASE("A delay costs its own time: late_ms is what was injected, and the score the share that is left") {
  const std::vector<Straggler> found =
      ImitatedJob(4, 1, Noise{.spread = 0}, 3).run(100, {{2, Cause::host, 50, 50, 900}});
  REQUIRE(found.size() == 1);
  CHECK(found[0].late_ms == Approx(900).margin(1));
  CHECK(found[0].steps == 1);
  CHECK(found[0].since == 50);
  CHECK(found[0].score == Approx(98. / 998).margin(0.15));  // 90 ms of works and 8 ms of the link
}

TEST_CASE("Medians of others equal the medians of the list without the value") {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> values(2 + random() % 9);
    for (double& value : values) value = static_cast<double>(random() % 7);
    const MedianOfOthers others(values);
    for (size_t i = 0; i < values.size(); ++i) {
      std::vector<double> rest = values;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      std::sort(rest.begin(), rest.end());
      const double expected = (rest[(rest.size() - 1) / 2] + rest[rest.size() / 2]) / 2;
      CHECK(others.without(values[i]) == expected);
      CHECK(median(rest) == expected);
    }
  }
}

TEST_CASE("A thread's usage counts its computing and not its sleep") {
  constexpr int64_t kPauseNs = 20'000'000, kBusyNs = 30'000'000;
  const auto thread_ns = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  };
  ThreadUsage usage;
  const timespec pause{0, kPauseNs};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  CHECK(usage.look().ran_ns < kPauseNs);
  for (const int64_t until_ns = thread_ns() + kBusyNs; thread_ns() < until_ns;) {
  }
  CHECK(usage.look().ran_ns >= kBusyNs);
}
