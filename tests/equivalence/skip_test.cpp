// SPDX-License-Identifier: Apache-2.0
// Skipped updates on every layout: all ranks skip the same steps, weights and states stay, and plans that may skip
// train with the bits of plans that may not.

#include <cmath>
#include <limits>
#include <optional>

#include "tests/equivalence/table.h"
#include "tests/test.hpp"
#include "trainer/runtime/loop/numerics.h"

namespace slipstream::equivalence {
namespace {

using runtime::NumericsGuard;
using runtime::Rank;
using runtime::window_of;

constexpr float kNone = std::numeric_limits<float>::infinity();

/// Limits that the norm or the loss of step 2 exceeds.
Layout limited(Layout layout, bool by_norm) {
  layout.skips = true;
  layout.limits = [by_norm](int64_t step) {
    const float limit = step == 2 ? -1.0f : kNone;
    return std::array<float, kLimits>{by_norm ? limit : kNone, by_norm ? kNone : limit};
  };
  return layout;
}

/// In step 2, a work of the last rank's backward pass leaves a NaN in a gradient. If there are split tensors, it is the
/// gradient of one, because tensor ranks share the others and one of them counts those.
Layout poisoned(Layout layout) {
  layout.skips = true;
  layout.mutate = [last = layout.world() - 1, splits = layout.tensor > 1](Job& job) {
    if (job.options.rank != last) return;
    for (size_t i = job.train().spine.size(); i-- > 0;) {
      if (job.train().spine[i].op != Op::compute) continue;
      for (Work& work : job.model.pieces[job.train().spine[i].piece].works)
        for (const Slice& slice : work.writes)
          for (const ParameterSpec& parameter : job.model.parameters)
            if (slice.buffer == parameter.gradient && parameter.is_split() == splits) {
              work.fn = [fn = std::move(work.fn), slice](LaunchContext& c) {
                fn(c);
                if (c.frame->step == 2) *c.as<float>(slice) = std::numeric_limits<float>::quiet_NaN();
              };
              return;
            }
    }
  };
  return layout;
}

const std::vector<int> kSecond{0, 1, 0};

/// Every sixth layout from number `first` on; with scripts/test.sh --all, every layout.
std::vector<Layout> sampled(size_t first) {
  const std::vector<Layout> all = strategies(test_everything());
  std::vector<Layout> layouts;
  for (size_t i = test_everything() ? 0 : first; i < all.size(); i += test_everything() ? 1 : 6)
    layouts.push_back(all[i]);
  return layouts;
}

std::vector<std::shared_ptr<const Job>> stages_of(const Layout& layout) {
  std::vector<std::shared_ptr<const Job>> stages;
  for (auto& job : make_jobs(layout, 0)) stages.push_back(std::move(job));
  return stages;
}

RunConfig config_of(OnNan on_nan, double zscore) {
  RunConfig config;
  config.train.on_nan = on_nan;
  config.train.max_skips = 2;
  config.train.spike_zscore = zscore;
  return config;
}

}  // namespace

TEST_CASE("a skipped step keeps the weights of every layout, and other steps have the bits of a plan without skips",
          "[skip]") {
  int rows = 0;
  for (const Layout& layout : sampled(0)) {
    CAPTURE(layout.name);
    const Trained plain = train(layout, 3);
    const Trained able = train(with(layout, [](Layout& l) { l.skips = true; }), 3);
    CHECK(able.hash == plain.hash);
    CHECK(able.losses == plain.losses);
    CHECK(able.skipped == std::vector<int>{0, 0, 0});
    const Trained once = train(layout, 1);
    for (const bool by_norm : {true, false}) {
      const Trained kept = train(limited(layout, by_norm), 2);
      CHECK(kept.hash == once.hash);
      CHECK(kept.skipped == std::vector<int>{0, 1});
      for (const std::string& hash : kept.rank_hashes) CHECK(hash == kept.hash);
    }
    const Trained on =
        train(limited(with(layout, [&](Layout& l) { l.delay_seed = 1 + static_cast<uint64_t>(rows); }), true), 3);
    CHECK(on.skipped == kSecond);
    CHECK(on.hash != once.hash);
    for (const std::string& hash : on.rank_hashes) CHECK(hash == on.hash);
    ++rows;
  }
  std::printf("  COUNTED %d layouts that skip\n", rows);
}

TEST_CASE("a NaN in one rank's gradient skips the update on all ranks, is named, and leaves later steps finite",
          "[skip]") {
  int rows = 0;
  for (const Layout& layout : sampled(3)) {
    CAPTURE(layout.name);
    const Trained two = train(poisoned(layout), 2);
    CHECK(two.hash == train(layout, 1).hash);
    const Trained three = train(poisoned(layout), 3);
    CHECK(three.skipped == kSecond);
    CHECK(three.first_not_finite[0] == 0);
    CHECK(three.first_not_finite[1] > 0);
    CHECK(three.first_not_finite[2] == 0);
    CHECK(std::isnan(three.norms[1]));
    CHECK(std::isfinite(three.norms[2]));
    CHECK(three.hash != two.hash);
    for (const std::string& hash : three.rank_hashes) CHECK(hash == three.hash);
    for (const std::vector<float>& tensor : three.weights)
      CHECK(std::all_of(tensor.begin(), tensor.end(), [](float w) { return std::isfinite(w); }));
    ++rows;
  }
  std::printf("  COUNTED %d layouts with a NaN\n", rows);
}

TEST_CASE("Muon skips the updates of its matrices too", "[skip]") {
  const Layout layout{.name = "muon",
                      .model = smallest(Family::gpt2),
                      .ranks = 2,
                      .micro_batch = 2,
                      .groups = {{"matrices", &optimizers()[1],
                                  [](const ModelSpec& model, const ParameterSpec& parameter) {
                                    return parameter.layer >= 0 && parameter.layer < model.layers && parameter.decay;
                                  }},
                                 {"rest", &optimizers()[0]}}};
  CHECK(train(limited(layout, true), 2).hash == train(layout, 1).hash);
  CHECK(train(poisoned(layout), 3).skipped == kSecond);
}

TEST_CASE("window: mean, deviation and limit of the finite ones among the last 128 values", "[skip]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> values;
  for (int i = 0; i < 63; ++i) {
    values.insert(values.end(), {static_cast<double>(i % 2), nan});
    CHECK(!window_of(values, 4));
  }
  values.push_back(1);
  REQUIRE(window_of(values, 4));
  CHECK(window_of(values, 4)->mean == Approx(0.5));
  CHECK(window_of(values, 4)->deviation == Approx(0.5));
  CHECK(window_of(values, 4)->limit == Approx(2.5));
  for (int i = 0; i < 128; ++i) values.push_back(10 + i % 4);
  CHECK(window_of(values, 0)->mean == Approx(11.5));
  CHECK(window_of(values, 2)->limit == Approx(11.5 + 2 * std::sqrt(1.25)));
  CHECK(!window_of(std::vector<double>(200, 7.0), 4));  // equal values have no deviation
}

TEST_CASE("guard: the limits of a step are those of the values four steps before it, after a resume too", "[skip]") {
  const auto stages = stages_of({.model = smallest(Family::gpt2)});
  const RunConfig config = config_of(OnNan::skip, 4);
  NumericsGuard guard(config, 10, stages);
  const auto limits_of = [](const NumericsGuard& of, int64_t step) {
    std::array<float, kLimits> limits{};
    of.write_limits(step, limits);
    return limits;
  };
  std::vector<double> losses, norms;
  const auto expected = [&](int64_t step) {  // computed from all values, by the definition
    const auto last = static_cast<size_t>(std::max<int64_t>(0, step - NumericsGuard::kLag));
    const auto loss = window_of(std::span(losses).first(last), 4), norm = window_of(std::span(norms).first(last), 4);
    return std::array<float, kLimits>{norm ? norm->limit : kNone, loss ? loss->limit * 10 : kNone};
  };
  std::optional<NumericsGuard> resumed;
  for (int64_t step = 1; step <= 300; ++step) {
    const double noise = std::sin(static_cast<double>(step * step));
    losses.push_back(step % 50 == 0 ? std::numeric_limits<double>::quiet_NaN() : 2 + noise);
    norms.push_back(1 + 0.5 * noise);
    const Rank::Report report{
        .loss_sum = 10 * losses.back(), .norm = norms.back(), .skipped = step % 50 == 0 ? 1. : 0.};
    CHECK(guard.judge(step, report).empty());
    for (int64_t later = step - 2; later <= step + NumericsGuard::kLag; ++later)
      if (later > 0) CHECK(limits_of(guard, later) == expected(later));
    if (resumed) CHECK(resumed->judge(step, report).empty());
    if (step == 201) {
      resumed.emplace(config, 10, stages);
      resumed->resume(step, checkpoint::NumericsHistory(guard.history()));
    }
    if (resumed) {
      CHECK(limits_of(*resumed, step + 1) == limits_of(guard, step + 1));
      CHECK(limits_of(*resumed, step + NumericsGuard::kLag) == limits_of(guard, step + NumericsGuard::kLag));
    }
  }
  CHECK(limits_of(guard, 304)[1] < kNone);
}

TEST_CASE("guard: a step that is not finite ends the run, or too many that were skipped in a row", "[skip]") {
  const Layout layout{.model = smallest(Family::gpt2)};
  const auto stages = stages_of(layout);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  NumericsGuard aborts(config_of(OnNan::abort, 0), 10, stages);
  CHECK(aborts.judge(1, {.loss_sum = 20, .norm = 1}).empty());
  const std::string text = aborts.judge(2, {.loss_sum = nan, .norm = nan, .first_not_finite = 1});
  CHECK(
      text.starts_with("the loss is nan and the gradient norm nan; the first gradient that is not finite is that of "));
  for (const PlacedPart& placed : stages[0]->layout.parts)
    if (placed.norm_index == 0)
      CHECK(text.ends_with(" of " + stages[0]->model.parameters[placed.part.parameter].name()));
  NumericsGuard skips(config_of(OnNan::skip, 0), 10, stages);
  const Rank::Report bad{.loss_sum = nan, .norm = nan, .skipped = 1}, good{.loss_sum = 20, .norm = 1};
  for (int i = 0; i < 3; ++i)
    for (const Rank::Report& report : {bad, bad, good}) CHECK(skips.judge(1, report).empty());
  CHECK(skips.judge(1, bad).empty());
  CHECK(skips.judge(2, bad).empty());
  CHECK(skips.judge(3, bad).starts_with("3 updates in a row were skipped, more than train.max_skips = 2; the loss is"));
}

}  // namespace slipstream::equivalence
