// SPDX-License-Identifier: Apache-2.0
// AdamW against double over several steps; the same bits for every split of the range.

#include "kernels/adamw/adamw.h"

#include <utility>

#include "engine/base/check.h"
#include "tests/kernels/common/backend.h"
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

State run(LaunchContext& context, int64_t elems, const std::vector<int64_t>& ends) {
  State state(elems);
  for (int t = 1; t <= kSteps; ++t) {
    const auto g = gradient(elems, t);
    const AdamwScalars s = scalars(t);
    int64_t begin = 0;
    for (int64_t end : ends) {
      adamw(context, state.args(g, s, begin, end));
      begin = end;
    }
  }
  return state;
}

double error_against(const std::vector<float>& p, const std::vector<double>& want) {
  return relative_error(p, [&](int64_t i) { return want[static_cast<size_t>(i)]; });
}

}  // namespace

TEST_CASE(
    "adamw: the tolerance sees beta2 used for beta1, a forgotten and a coupled decay, another eps, a forgotten clip "
    "and a forgotten bias correction",
    "[.][cpu]") {
  const int64_t elems = 1000;
  LaunchContext context = context_of(1);
  const State state = run(context, elems, {elems});
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

TEST_CASE("adamw: any threads and any cut of the range give the same bits", "[.][cpu]") {
  const int64_t elems = 20011;
  Same<std::vector<float>> same;
  for_machines([&](LaunchContext& context) {
    const State whole = run(context, elems, {elems}), cut = run(context, elems, {1, 4, 1029, 10007, elems});
    CHECK(same_bits(whole.p, cut.p));
    CHECK(same_bits(whole.m, cut.m));
    CHECK(same_bits(whole.v, cut.v));
    CHECK(same(whole.p));
  });
}

TEST_CASE("adamw: multipliers in one range give the bits of ranges of their own", "[.][cpu]") {
  const int64_t elems = 20011;
  const std::vector<UpdateSpan> spans = {{0, 1, 0},         {5, 1, 1},     {1024, 0.5f, 1}, {1031, 0.5f, 3},
                                         {10007, 1, 0.25f}, {10007, 2, 0}, {20000, 0, 0.5f}};
  for_machines([&](LaunchContext& context) {
    State together(elems), apart(elems);
    const auto g = gradient(elems, 1);
    const AdamwScalars s = scalars(1);
    Adamw args = together.args(g, s, 0, elems);
    args.spans = spans.data(), args.span_count = std::ssize(spans);
    adamw(context, args);
    for (size_t i = 0; i < spans.size(); ++i) {
      AdamwScalars of_span = s;
      of_span.learning_rate *= spans[i].learning_rate;
      Adamw range = apart.args(g, of_span, spans[i].begin, i + 1 < spans.size() ? spans[i + 1].begin : elems);
      range.weight_decay *= spans[i].weight_decay;
      adamw(context, range);
    }
    CHECK(same_bits(together.p, apart.p));
    CHECK(same_bits(together.m, apart.m));
    CHECK(same_bits(together.v, apart.v));
  });
}

TEST_CASE("adamw: spans out of order or behind the end are refused", "[.][cpu]") {
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

TEST_CASE("adamw: a missing operand and an unknown device are refused; the cost is 28 bytes an element", "[.][cpu]") {
  LaunchContext context = context_of(1);
  CHECK_THROWS_AS(adamw(context, {.elems = 1}), ShapeError);
  CHECK_NOTHROW(adamw(context, {.elems = 0}));
  context.kind = DeviceKind::sim;
  CHECK_THROWS_AS(adamw(context, {.elems = 1}), ResourceError);
  CHECK(adamw_cost({.elems = 10}).bytes == 280);
}

TEST_CASE("adamw: three steps equal the double optimizer, aligned or not") {
  const reference::AdamwRule rule = {1e-2, 0.9, 0.95, 1e-8, 0.1};
  for (int64_t elems : {1, 7, 8, 9, 1023, 1025, 2047, 2048, 2051, on_cpu() ? 40961 : 2052})
    for (int64_t shift : {0, 1}) {
      CAPTURE(elems, shift);
      const Doubles start = random_doubles(elems, DType::f32, 1);
      std::vector<reference::AdamwState> states;
      for (double p : start) states.push_back({p, 0.0, 0.0});
      std::vector<Doubles> gradients;
      for (int t = 1; t <= 3; ++t) {
        gradients.push_back(random_doubles(elems, DType::f32, static_cast<uint32_t>(10 + t)));
        // AdamW ignores a factor that is the same in all steps.
        for (size_t i = 0; i < states.size(); ++i)
          states[i] = adamw_step(states[i], (t == 2 ? 0.5 : 1.0) * gradients.back()[i], rule, t);
      }
      Doubles want;
      for (const auto& state : states) want.push_back(state.p);
      for_machines([&](LaunchContext& context) {
        OnDevice p(start, DType::f32, "parameters", shift), m(Doubles(start.size()), DType::f32, "m"),
            v(Doubles(start.size()), DType::f32, "v");
        OnDevice working(elems, DType::bf16, "working");
        for (int t = 1; t <= 3; ++t) {
          OnDevice gradient(gradients[static_cast<size_t>(t - 1)], DType::f32, "gradient");
          OnDevice scalars(Doubles{1e-2, 1.0 / (1.0 - std::pow(double{0.9f}, t)),
                                   1.0 / (1.0 - std::pow(double{0.95f}, t)), t == 2 ? 0.5 : 1.0},
                           DType::f32, "scalars");
          adamw(context, {p.data<float>(), m.data<float>(), v.data<float>(), gradient.data<float>(),
                          t == 2 ? nullptr : working.data<bfloat16>(), elems, scalars.data<AdamwScalars>(), 0.9f, 0.95f,
                          1e-8f, 0.1f});
        }
        CHECK(error_of(p.doubles(), want) <= 1e-6);
        CHECK(working.doubles() == Tensor(p.doubles(), DType::bf16).doubles());
        CHECK((p.intact() && m.intact() && v.intact() && working.intact()));
      });
    }
}

TEST_CASE("adamw: a skipped step keeps parameters and moments, and copies the parameters") {
  for (int64_t elems : {1, 7, 8, 9, 1023, 1025, 2051})
    for (int64_t shift : {0, 1}) {
      CAPTURE(elems, shift);
      const Doubles start = random_doubles(elems, DType::f32, 1), moment = random_doubles(elems, DType::f32, 2);
      for_machines([&](LaunchContext& context) {
        OnDevice p(start, DType::f32, "parameters", shift), m(moment, DType::f32, "m"), v(moment, DType::f32, "v"),
            updated(elems, DType::f32, "updated"), working(elems, DType::bf16, "working"),
            gradient(Doubles(start.size(), NAN), DType::f32, "gradient"),
            scalars(Doubles{1e-2, 1.5, 1.2, -1.0}, DType::f32, "scalars");
        for (const bool apart : {false, true})
          adamw(context, {p.data<float>(), m.data<float>(), v.data<float>(), gradient.data<float>(),
                          working.data<bfloat16>(), elems, scalars.data<AdamwScalars>(), 0.9f, 0.95f, 1e-8f, 0.1f,
                          apart ? updated.data<float>() : nullptr});
        CHECK(p.doubles() == start);
        CHECK(m.doubles() == moment);
        CHECK(v.doubles() == moment);
        CHECK(updated.doubles() == start);
        CHECK(working.doubles() == Tensor(start, DType::bf16).doubles());
      });
    }
}

TEST_CASE("adamw: multipliers of spans give the bits of ranges of their own, however many there are", "[cuda]") {
  for (const int64_t count : {1, 2, 5, 127, 128, 129, 255, 256, 600}) {
    CAPTURE(count);
    std::vector<UpdateSpan> spans{{3, 0.5f, 0}};
    while (std::ssize(spans) < count)
      spans.push_back({spans.back().begin + std::ssize(spans) * 7 % 11,
                       static_cast<float>(std::ssize(spans) % 3) * 0.5f, static_cast<float>(std::ssize(spans) % 4)});
    const int64_t elems = spans.back().begin + 9;
    const Doubles start = random_doubles(elems, DType::f32, 1), g = random_doubles(elems, DType::f32, 2);
    OnDevice gradient(g, DType::f32, "gradient");
    std::vector<uint8_t> bytes[2];
    for (bool apart : {false, true}) {
      OnDevice p(start, DType::f32, "parameters"), m(Doubles(start.size()), DType::f32, "m"),
          v(Doubles(start.size()), DType::f32, "v"), working(elems, DType::bf16, "working");
      LaunchContext context = a_context();
      const auto update = [&](int64_t begin, int64_t end, float rate, float decay, int64_t span_count) {
        OnDevice scalars(Doubles{static_cast<double>(1e-2f * rate), 1.5, 1.2, 0.5}, DType::f32, "scalars");
        adamw(context, {p.data<float>(begin), m.data<float>(begin), v.data<float>(begin), gradient.data<float>(begin),
                        working.data<bfloat16>(begin), end - begin, scalars.data<AdamwScalars>(), 0.9f, 0.95f, 1e-8f,
                        0.1f * decay, nullptr, spans.data(), span_count});
      };
      const int64_t before = emulation::launches();
      if (!apart) update(0, elems, 1, 1, count);
      if (!apart && !on_gpu())
        CHECK(emulation::launches() - before == (count <= 128 ? 1 : 1 + (count - 128 + 126) / 127));
      if (apart) update(0, spans[0].begin, 1, 1, 0);
      for (size_t i = 0; apart && i < spans.size(); ++i)
        update(spans[i].begin, i + 1 < spans.size() ? spans[i + 1].begin : elems, spans[i].learning_rate,
               spans[i].weight_decay, 0);
      bytes[apart] = p.bytes();
      const auto more = working.bytes();
      bytes[apart].insert(bytes[apart].end(), more.begin(), more.end());
      CHECK((p.intact() && m.intact() && v.intact() && working.intact()));
    }
    CHECK(bytes[0] == bytes[1]);
  }
}
