// SPDX-License-Identifier: Apache-2.0
// The choice of experts against a sort, its weights against double, and its gradient against central differences.

#include <set>

#include "engine/base/check.h"
#include "kernels/experts/route.h"
#include "tests/kernels/common/backend.h"
#include "tests/reference/experts.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::Router;

namespace {

struct Shape {
  int64_t tokens, experts;
  Router router;
};

Doubles row_of(const Doubles& all, int64_t row, int64_t width) {
  return {all.begin() + row * width, all.begin() + (row + 1) * width};
}
std::vector<int32_t> row_of(const std::vector<int32_t>& all, int64_t row, int64_t width) {
  return {all.begin() + row * width, all.begin() + (row + 1) * width};
}

RouteForward forward_of(const Shape& s) {
  return {.tokens = s.tokens,
          .experts = s.experts,
          .top_k = s.router.top_k,
          .groups = s.router.groups,
          .group_top_k = s.router.group_top_k,
          .router = s.router.sigmoid ? RouterKind::sigmoid : RouterKind::softmax,
          .normalize = s.router.normalize,
          .scale = static_cast<float>(s.router.scale)};
}

/// One token, one expert, top_k = count, experts around vectors and warps, groups of one, of two and of more, ties.
std::vector<Shape> shapes() {
  std::vector<Shape> all = {
      {1, 1, {.top_k = 1}},
      {3, 2, {.normalize = false, .top_k = 2}},
      {5, 8, {.scale = 2.5, .top_k = 2}},
      {4, 7, {.sigmoid = true, .top_k = 7}},
      {3, 33, {.sigmoid = true, .normalize = false, .scale = 0.5, .top_k = 3}},
      {2, 64, {.groups = 8, .group_top_k = 3, .top_k = 6}},
      {5, 32, {.sigmoid = true, .scale = 2.5, .groups = 32, .group_top_k = 5, .top_k = 4}},
      {4, 12, {.sigmoid = true, .groups = 4, .group_top_k = 2, .top_k = 6}},
      {2, 100, {.normalize = false, .groups = 2, .group_top_k = 1, .top_k = 50}},
  };
  if (on_cpu())
    all.insert(all.end(),
               {{301, 64, {.top_k = 8}}, {67, 256, {.sigmoid = true, .groups = 8, .group_top_k = 4, .top_k = 8}}});
  return all;
}

/// Logits of which many are equal, so that scores tie inside and across groups.
Doubles tied_logits(int64_t elems, uint32_t seed) {
  Doubles logits = random_doubles(elems, DType::f32, seed, 2.0);
  for (double& x : logits) x = std::round(x);
  return logits;
}

void check_forward(const Shape& s, const Doubles& logits, bool biased) {
  CAPTURE(s.tokens, s.experts, s.router.top_k, s.router.groups, s.router.group_top_k, s.router.sigmoid, biased);
  Doubles bias = random_doubles(s.experts, DType::f32, 7, 0.2);
  for (double& b : bias) b = std::round(b * 8) / 8;  // ties stay ties
  OnDevice in(logits, DType::f32, "logits"), on_bias(bias, DType::f32, "bias");
  SameBits same;
  for_machines([&](LaunchContext& context) {
    OnDevice scores(s.tokens * s.experts, DType::f32, "scores"),
        weights(s.tokens * s.router.top_k, DType::f32, "weights");
    const Held<int32_t> chosen(std::vector<int32_t>(static_cast<size_t>(s.tokens * s.router.top_k), -7), "chosen");
    RouteForward args = forward_of(s);
    args.logits = in.data<float>(), args.scores = scores.data<float>(), args.chosen = chosen.data(),
    args.weights = weights.data<float>();
    if (biased) args.bias = on_bias.data<float>();
    route_forward(context, args);
    const Doubles got = scores.doubles();
    Doubles expected, expected_weights;
    std::vector<int32_t> expected_chosen;
    for (int64_t t = 0; t < s.tokens; ++t) {
      const Doubles exact = reference::router_scores(s.router, row_of(logits, t, s.experts));
      Doubles preferences = row_of(got, t, s.experts);  // choices are exact for the scores of the device
      for (size_t e = 0; e < preferences.size() && biased; ++e)
        preferences[e] = static_cast<double>(static_cast<float>(preferences[e]) + static_cast<float>(bias[e]));
      const auto choices = reference::router_choices(s.router, preferences);
      const Doubles of_token = reference::router_weights(s.router, exact, choices);
      expected.insert(expected.end(), exact.begin(), exact.end());
      expected_chosen.insert(expected_chosen.end(), choices.begin(), choices.end());
      expected_weights.insert(expected_weights.end(), of_token.begin(), of_token.end());
    }
    CHECK(error_of(got, expected) < forward_tolerance(DType::f32, 1));
    CHECK(chosen.values() == expected_chosen);
    CHECK(error_of(weights.doubles(), expected_weights) < forward_tolerance(DType::f32, 1));
    CHECK(same(weights));
    CHECK((scores.intact() && weights.intact() && chosen.intact() && in.intact()));
    args.scores = in.data<float>();  // in place
    route_forward(context, args);
    CHECK(in.doubles() == got);
    in.set(logits);
  });
}

void check_backward(const Shape& s, int64_t sequence, double auxiliary, double z_loss) {
  CAPTURE(s.tokens, s.experts, s.router.top_k, s.router.sigmoid, s.router.normalize, sequence, auxiliary, z_loss);
  const int64_t all = s.tokens * s.experts, choices = s.tokens * s.router.top_k;
  const Doubles logits = random_doubles(all, DType::f32, 1, 1.5), dweights = random_doubles(choices, DType::f32, 2);
  std::vector<int32_t> chosen, load(static_cast<size_t>(s.tokens / sequence * s.experts));
  Doubles scores, expected;
  for (int64_t t = 0; t < s.tokens; ++t) {
    const Doubles of_token = reference::router_scores(s.router, row_of(logits, t, s.experts));
    scores.insert(scores.end(), of_token.begin(), of_token.end());
    for (const int32_t expert : reference::router_choices(s.router, of_token)) {
      chosen.push_back(expert);
      ++load[static_cast<size_t>(t / sequence * s.experts + expert)];
    }
  }
  for (int64_t t = 0; t < s.tokens; ++t) {
    const auto loss = [&](const Doubles& x) {
      return reference::router_loss(s.router, x, row_of(chosen, t, s.router.top_k), row_of(dweights, t, s.router.top_k),
                                    row_of(load, t / sequence, s.experts),
                                    {.auxiliary = auxiliary, .z_loss = z_loss, .sequence = sequence});
    };
    const Doubles gradient = central_differences(loss, row_of(logits, t, s.experts));
    expected.insert(expected.end(), gradient.begin(), gradient.end());
  }
  OnDevice on_scores(scores, DType::f32, "scores"), on_logits(logits, DType::f32, "logits"),
      on_dweights(dweights, DType::f32, "dweights");
  const Held<int32_t> on_chosen(chosen, "chosen");
  const Held<float> on_load(std::vector<float>(load.begin(), load.end()), "load");
  const RouteForward forward = forward_of(s);
  SameBits same;
  for_machines([&](LaunchContext& context) {
    OnDevice dlogits(all, DType::f32, "dlogits");
    RouteBackward args{.scores = on_scores.data<float>(),
                       .chosen = on_chosen.data(),
                       .dweights = on_dweights.data<float>(),
                       .logits = z_loss == 0 ? nullptr : on_logits.data<float>(),
                       .load = auxiliary == 0 ? nullptr : on_load.data(),
                       .dlogits = dlogits.data<float>(),
                       .tokens = s.tokens,
                       .sequence = sequence,
                       .experts = s.experts,
                       .top_k = s.router.top_k,
                       .router = forward.router,
                       .normalize = forward.normalize,
                       .scale = forward.scale,
                       .auxiliary = static_cast<float>(auxiliary),
                       .z_loss = static_cast<float>(z_loss)};
    route_backward(context, args);
    CHECK(error_of(dlogits.doubles(), expected) < gradient_tolerance(DType::f32, s.experts));
    CHECK(same(dlogits));
    CHECK(dlogits.intact());
    if (z_loss == 0) return;
    args.dlogits = on_logits.data<float>();  // in place
    route_backward(context, args);
    CHECK(on_logits.bytes() == dlogits.bytes());
    on_logits.set(logits);
  });
}

}  // namespace

TEST_CASE("route: scores and weights equal double, and the choices are those of a stable sort") {
  for (const Shape& s : shapes())
    for (const bool biased : {false, true}) {
      check_forward(s, random_doubles(s.tokens * s.experts, DType::f32, 11, 2.0), biased);
      check_forward(s, tied_logits(s.tokens * s.experts, 12), biased);
      check_forward(s, Doubles(static_cast<size_t>(s.tokens * s.experts), 0.25), biased);  // all are equal
    }
}

TEST_CASE("route: large logits keep their scores finite") {
  const Doubles logits = {-3e38, -200, -190, 80, 200, 3e38, 90, 89, -1000, -1000, -999, -1001};
  for (const bool sigmoid : {false, true}) check_forward({3, 4, {.sigmoid = sigmoid, .top_k = 2}}, logits, false);
}

TEST_CASE("route: logits that are not finite give different experts in range, chosen last") {
  const double nan = NAN;
  const Doubles logits = {nan,       1, 2,   nan, nan, nan, 0, nan,       nan, nan, nan,      nan,
                          -INFINITY, 0, nan, 3,   nan, 1,   1, -INFINITY, 5,   nan, INFINITY, nan};
  for (const bool sigmoid : {false, true})
    for (const int64_t groups : {1, 3}) {
      const Shape s{4, 6, {.sigmoid = sigmoid, .groups = groups, .group_top_k = (groups + 1) / 2, .top_k = 4}};
      OnDevice in(logits, DType::f32, "logits");
      for_machines([&](LaunchContext& context) {
        OnDevice scores(24, DType::f32, "scores"), weights(16, DType::f32, "weights");
        const Held<int32_t> chosen(std::vector<int32_t>(16, -7), "chosen");
        RouteForward args = forward_of(s);
        args.logits = in.data<float>(), args.scores = scores.data<float>(), args.chosen = chosen.data(),
        args.weights = weights.data<float>();
        route_forward(context, args);
        for (int64_t t = 0; t < s.tokens; ++t) {
          const std::vector<int32_t> of_token = row_of(chosen.values(), t, 4);
          CHECK(std::set<int32_t>(of_token.begin(), of_token.end()).size() == 4);
          CHECK(std::all_of(of_token.begin(), of_token.end(), [](int32_t e) { return e >= 0 && e < 6; }));
        }
        if (sigmoid && groups == 1) CHECK(row_of(chosen.values(), 0, 4) == std::vector<int32_t>{2, 1, 0, 3});
        CHECK((scores.intact() && weights.intact() && chosen.intact()));
      });
    }
}

TEST_CASE("route: the gradient of weights, balance and z-loss equals central differences") {
  const std::vector<std::pair<double, double>> losses = {{0, 0}, {0.3, 0}, {0, 0.2}, {0.3, 0.2}};
  for (const bool sigmoid : {false, true})
    for (const bool normalize : {false, true})
      for (const auto& [auxiliary, z_loss] : losses) {
        check_backward({6, 5, {.sigmoid = sigmoid, .normalize = normalize, .scale = 2.5, .top_k = 2}}, 3, auxiliary,
                       z_loss);
        check_backward({2, 35, {.sigmoid = sigmoid, .normalize = normalize, .top_k = 35}}, 1, auxiliary, z_loss);
        check_backward({1, 1, {.sigmoid = sigmoid, .normalize = normalize, .top_k = 1}}, 1, auxiliary, z_loss);
        check_backward({3, 64, {.sigmoid = sigmoid, .normalize = normalize, .top_k = 33}}, 3, auxiliary, z_loss);
      }
}

TEST_CASE("route: loads are the numbers of choices of each expert and sequence") {
  for (const auto& [tokens, sequence, experts, top_k] : std::vector<std::array<int64_t, 4>>{
           {1, 1, 1, 1}, {6, 2, 5, 2}, {9, 9, 300, 3}, {700, 350, 7, 2}, {4, 1, 4, 4}}) {
    CAPTURE(tokens, sequence, experts, top_k);
    std::vector<int32_t> chosen;
    std::vector<float> expected(static_cast<size_t>(tokens / sequence * experts));
    for (int64_t i = 0; i < tokens * top_k; ++i) {
      const auto expert = static_cast<int32_t>(i * i % (experts + 2) - 1);  // some outside on both sides
      chosen.push_back(expert);
      if (expert >= 0 && expert < experts) ++expected[static_cast<size_t>(i / (top_k * sequence) * experts + expert)];
    }
    const Held<int32_t> on_chosen(chosen, "chosen");
    for_machines([&](LaunchContext& context) {
      const Held<float> load(std::vector<float>(expected.size(), 99), "load");
      route_load(context, {on_chosen.data(), load.data(), tokens, sequence, experts, top_k});
      CHECK(load.values() == expected);
      CHECK(load.intact());
    });
  }
}

TEST_CASE("route: impossible operands are refused, costs equal the formula in the header", "[.][cpu]") {
  LaunchContext context = a_context();
  CHECK_THROWS_WITH(route_forward(context, {.tokens = 1, .experts = 4, .top_k = 5}),
                    "[route_forward] top_k is 5, need at most experts = 4.");
  CHECK_THROWS_WITH(route_forward(context, {.tokens = 1, .experts = 8, .top_k = 3, .groups = 3}),
                    "[route_forward] groups is 3, need a divisor of experts = 8.");
  CHECK_THROWS_WITH(route_forward(context, {.tokens = 1, .experts = 66, .top_k = 3, .groups = 33}),
                    "[route_forward] groups is 33, need at most 32.");
  CHECK_THROWS_WITH(route_forward(context, {.tokens = 1, .experts = 8, .top_k = 3, .groups = 4, .group_top_k = 5}),
                    "[route_forward] group_top_k is 5, need at most groups = 4.");
  CHECK_THROWS_WITH(route_forward(context, {.tokens = 1, .experts = 8, .top_k = 3, .groups = 4, .group_top_k = 1}),
                    "[route_forward] top_k is 3, need at most the 2 experts of 1 of 4 groups.");
  CHECK_THROWS_WITH(route_load(context, {.tokens = 5, .sequence = 2, .experts = 8, .top_k = 1}),
                    "[route_load] sequence is 2, need a divisor of tokens = 5.");
  CHECK_THROWS_AS(route_backward(context, {.tokens = 1, .experts = 2, .top_k = 1}), ShapeError);
  CHECK_NOTHROW(route_forward(context, {.tokens = 0, .experts = 2, .top_k = 1}));
  CHECK_NOTHROW(route_backward(context, {.tokens = 0, .experts = 2, .top_k = 1}));
  CHECK_NOTHROW(route_load(context, {.tokens = 0, .experts = 2, .top_k = 1}));
  const float bias = 0;
  CHECK(route_forward_cost({.bias = &bias, .tokens = 3, .experts = 4, .top_k = 2}).bytes == 8 * 12 + 8 * 6 + 16);
  CHECK(route_forward_cost({.tokens = 3, .experts = 4, .top_k = 2}).flops == 21 * 12);
  CHECK(route_backward_cost({.tokens = 4, .sequence = 2, .experts = 3, .top_k = 2}).bytes == 8 * 12 + 8 * 8);
  CHECK(
      route_backward_cost({.tokens = 4, .sequence = 2, .experts = 3, .top_k = 2, .auxiliary = 1, .z_loss = 1}).bytes ==
      12 * 12 + 8 * 8 + 4 * 6);
  CHECK(route_load_cost({.tokens = 4, .sequence = 2, .experts = 3, .top_k = 2}).bytes == 4 * 8 + 4 * 6);
}
