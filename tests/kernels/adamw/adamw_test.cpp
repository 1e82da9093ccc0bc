// SPDX-License-Identifier: Apache-2.0
// AdamW against double over several steps; the same bits for every split of the range.

#include "kernels/adamw/adamw.h"

#include <utility>

#include "engine/base/check.h"
#include "tests/kernels/common/cases.h"
#include "tests/reference/optimizer.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr float kBeta1 = 0.9f, kBeta2 = 0.95f, kEps = 1e-8f, kDecay = 0.1f, kRate = 1e-2f, kClip = 0.5f;
constexpr int kSteps = 3;

/// Gradient of step `t`. AdamW ignores a factor that is the same in all steps.
float clip_of(int t, float clip) { return t == 2 ? clip : 1.0f; }

AdamwScalars scalars(int t) {
  return {kRate, static_cast<float>(1.0 / (1.0 - std::pow(double{kBeta1}, t))),
          static_cast<float>(1.0 / (1.0 - std::pow(double{kBeta2}, t))), clip_of(t, kClip)};
}

struct State {
  explicit State(int64_t elems)
      : p(random<float>(elems, "p")), m(static_cast<size_t>(elems)), v(m), working(static_cast<size_t>(elems)) {}
  std::vector<float> p, m, v;
  std::vector<bfloat16> working;

  Adamw args(const std::vector<float>& g, const AdamwScalars& s, int64_t begin, int64_t end) {
    return {p.data() + begin,
            m.data() + begin,
            v.data() + begin,
            g.data() + begin,
            working.data() + begin,
            end - begin,
            &s,
            kBeta1,
            kBeta2,
            kEps,
            kDecay};
  }
};

std::vector<float> gradient(int64_t elems, int t) { return random<float>(elems, "g" + std::to_string(t)); }

/// Parameters after kSteps steps in double. `coupled`: decay as a part of the gradient, as in Adam before AdamW.
std::vector<double> expected(int64_t elems, reference::AdamwRule rule, double clip, bool coupled = false) {
  const double in_gradient = coupled ? std::exchange(rule.weight_decay, 0.0) : 0.0;
  const auto start = random<float>(elems, "p");
  std::vector<reference::AdamwState> states;
  for (float p : start) states.push_back({static_cast<double>(p), 0.0, 0.0});
  for (int t = 1; t <= kSteps; ++t) {
    const auto g = gradient(elems, t);
    for (size_t i = 0; i < states.size(); ++i)
      states[i] = adamw_step(
          states[i],
          double{clip_of(t, static_cast<float>(clip))} * static_cast<double>(g[i]) + in_gradient * states[i].p, rule,
          t);
  }
  std::vector<double> p;
  for (const auto& state : states) p.push_back(state.p);
  return p;
}

const reference::AdamwRule kRule = {kRate, kBeta1, kBeta2, kEps, kDecay};

State run(Isa isa, LaunchContext& context, int64_t elems, const std::vector<int64_t>& ends) {
  State state(elems);
  for (int t = 1; t <= kSteps; ++t) {
    const auto g = gradient(elems, t);
    const AdamwScalars s = scalars(t);
    int64_t begin = 0;
    for (int64_t end : ends) {
      SLIP_CALL_ON(isa, adamw_cpu(context, state.args(g, s, begin, end)));
      begin = end;
    }
  }
  return state;
}

double error_against(const std::vector<float>& p, const std::vector<double>& want) {
  return relative_error(p, [&](int64_t i) { return want[static_cast<size_t>(i)]; });
}

}  // namespace

TEST_CASE("three steps equal the double optimizer") {
  for (int64_t elems : {1, 7, 1023, 1025, 40961}) {
    CAPTURE(elems);
    const auto want = expected(elems, kRule, kClip);
    for_each_machine([&](Isa isa, LaunchContext& context) {
      const State state = run(isa, context, elems, {elems});
      CHECK(error_against(state.p, want) <= 1e-6);
      for (size_t i = 0; i < state.p.size(); ++i) REQUIRE(state.working[i].bits == bfloat16(state.p[i]).bits);
    });
  }
}

TEST_CASE(
    "the tolerance sees beta2 used for beta1, a forgotten and a coupled decay, another eps, a forgotten clip and a "
    "forgotten bias correction") {
  const int64_t elems = 1000;
  LaunchContext context = context_of(1);
  const State state = run(isas().back(), context, elems, {elems});
  reference::AdamwRule wrong = kRule;
  wrong.beta1 = kBeta2;
  CHECK(error_against(state.p, expected(elems, wrong, kClip)) > 1e-6);
  wrong = kRule;
  wrong.weight_decay = 0.0;
  CHECK(error_against(state.p, expected(elems, wrong, kClip)) > 1e-6);
  wrong = kRule;
  wrong.eps = 1e-4;
  CHECK(error_against(state.p, expected(elems, wrong, kClip)) > 1e-6);
  CHECK(error_against(state.p, expected(elems, kRule, 1.0)) > 1e-6);
  CHECK(error_against(state.p, expected(elems, kRule, kClip, true)) > 1e-6);
  State uncorrected(elems);
  for (int t = 1; t <= kSteps; ++t) {
    const AdamwScalars s{kRate, 1.0f, scalars(t).inv_bias2, clip_of(t, kClip)};
    adamw(context, uncorrected.args(gradient(elems, t), s, 0, elems));
  }
  CHECK(error_against(uncorrected.p, expected(elems, kRule, kClip)) > 1e-6);
}

TEST_CASE("a skipped step keeps parameters and moments, and copies the parameters where the step would write them") {
  for (int64_t elems : {1, 7, 1023, 1025, 40961}) {
    const std::vector<float> g(static_cast<size_t>(elems), NAN);
    AdamwScalars s = scalars(1);
    s.clip = -1.0f;
    for_each_machine([&](Isa isa, LaunchContext& context) {
      State state = run(isa, context, elems, {elems});
      const State before = state;
      SLIP_CALL_ON(isa, adamw_cpu(context, state.args(g, s, 0, elems)));
      CHECK(same_bits(state.p, before.p));
      std::vector<float> updated(static_cast<size_t>(elems), 7.0f);
      std::fill(state.working.begin(), state.working.end(), bfloat16(7.0f));
      Adamw args = state.args(g, s, 0, elems);
      args.updated = updated.data();
      SLIP_CALL_ON(isa, adamw_cpu(context, args));
      CHECK(same_bits(updated, before.p));
      CHECK(same_bits(state.p, before.p));
      CHECK(same_bits(state.m, before.m));
      CHECK(same_bits(state.v, before.v));
      for (size_t i = 0; i < state.p.size(); ++i) REQUIRE(state.working[i].bits == bfloat16(state.p[i]).bits);
    });
  }
}

TEST_CASE("any threads and any cut of the range give the same bits") {
  const int64_t elems = 20011;
  for (Isa isa : isas()) {
    LaunchContext one = context_of(1);
    const State whole = run(isa, one, elems, {elems});
    for (int threads : {1, 2, 3}) {
      LaunchContext context = context_of(threads);
      const State cut = run(isa, context, elems, {1, 4, 1029, 10007, elems});
      CHECK(same_bits(whole.p, cut.p));
      CHECK(same_bits(whole.m, cut.m));
      CHECK(same_bits(whole.v, cut.v));
    }
  }
}

TEST_CASE("multipliers in one range give the bits of ranges of their own") {
  const int64_t elems = 20011;
  const std::vector<UpdateSpan> spans = {{0, 1, 0},         {5, 1, 1},     {1024, 0.5f, 1}, {1031, 0.5f, 3},
                                         {10007, 1, 0.25f}, {10007, 2, 0}, {20000, 0, 0.5f}};
  for (Isa isa : isas())
    for (int threads : {1, 3}) {
      LaunchContext context = context_of(threads);
      State together(elems), apart(elems);
      const auto g = gradient(elems, 1);
      const AdamwScalars s = scalars(1);
      Adamw args = together.args(g, s, 0, elems);
      args.spans = spans.data(), args.span_count = std::ssize(spans);
      SLIP_CALL_ON(isa, adamw_cpu(context, args));
      for (size_t i = 0; i < spans.size(); ++i) {
        AdamwScalars of_span = s;
        of_span.learning_rate *= spans[i].learning_rate;
        Adamw range = apart.args(g, of_span, spans[i].begin, i + 1 < spans.size() ? spans[i + 1].begin : elems);
        range.weight_decay *= spans[i].weight_decay;
        SLIP_CALL_ON(isa, adamw_cpu(context, range));
      }
      CHECK(same_bits(together.p, apart.p));
      CHECK(same_bits(together.m, apart.m));
      CHECK(same_bits(together.v, apart.v));
    }
}

TEST_CASE("spans out of order or behind the end are refused") {
  LaunchContext context = context_of(1);
  State state(8);
  const auto g = gradient(8, 1);
  const AdamwScalars s = scalars(1);
  for (const std::vector<int64_t>& begins : {std::vector<int64_t>{3, 2}, {-1}, {9}}) {
    std::vector<UpdateSpan> spans;
    for (const int64_t begin : begins) spans.push_back({.begin = begin});
    Adamw args = state.args(g, s, 0, 8);
    args.spans = spans.data(), args.span_count = std::ssize(spans);
    CHECK_THROWS_AS(adamw(context, args), ShapeError);
  }
}

TEST_CASE("a missing operand and an unknown device are refused; the cost is 28 bytes an element") {
  LaunchContext context = context_of(1);
  CHECK_THROWS_AS(adamw(context, {.elems = 1}), ShapeError);
  CHECK_NOTHROW(adamw(context, {.elems = 0}));
  context.kind = DeviceKind::sim;
  CHECK_THROWS_AS(adamw(context, {.elems = 1}), ResourceError);
  CHECK(adamw_cost({.elems = 10}).bytes == 280);
}
