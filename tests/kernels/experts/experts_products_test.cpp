// SPDX-License-Identifier: Apache-2.0
// The products of a router and of all experts against double: a dense loop over the experts.

#include "engine/base/check.h"
#include "kernels/experts/grouped.h"
#include "kernels/experts/router_linear.h"
#include "tests/kernels/common/backend.h"
#include "tests/reference/experts.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::product;

namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16};
constexpr double kPoison = 77;  // of memory that must stay untouched

struct Groups {
  std::vector<int32_t> loads;
  int64_t spare, in, out;  // rows after the last expert's

  int64_t experts() const { return std::ssize(loads); }
  int64_t rows() const { return std::accumulate(loads.begin(), loads.end(), int64_t{0}); }
  int64_t max_rows() const { return rows() + spare; }
  std::vector<int32_t> offsets() const {
    std::vector<int32_t> all = {0};
    for (const int32_t load : loads) all.push_back(all.back() + load);
    return all;
  }
};

/// One row, an empty expert, all rows of one expert, no rows at all, widths around vectors and tiles.
std::vector<Groups> groups() {
  std::vector<Groups> all = {{{1}, 0, 1, 1},
                             {{3, 0, 5}, 2, 8, 16},
                             {{0, 0, 17, 0}, 3, 33, 9},
                             {{0, 0}, 4, 5, 3},
                             {{2, 1, 0, 70}, 1, 40, 24},
                             {std::vector<int32_t>(10, 2), 1, 24, 16},
                             {{65, 64, 63}, 5, 16, 72},
                             {{9, 130}, 0, 72, 136}};
  if (on_cpu())
    all.insert(all.end(), {{{301, 5, 0, 200}, 9, 129, 67},
                           {std::vector<int32_t>(20, 13), 3, 70, 65},
                           {{700}, 0, 64, 96},
                           {{30, 1, 1, 1, 1, 1, 90}, 7, 260, 300}});
  return all;
}

/// values, with `count` elements at the end that are not numbers.
Doubles with_poison(Doubles values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values.push_back(NAN);
  return values;
}

/// Rows of all experts, each the product of its row of `x` [rows, depth] with op(weight) of its expert.
Doubles by_expert(const Groups& g, const Doubles& x, const Doubles& weight, int64_t depth, int64_t columns,
                  bool transposed) {
  Doubles all;
  const double* row = x.data();
  for (int64_t e = 0; e < g.experts(); ++e) {
    const double* w = weight.data() + e * g.in * g.out;
    const int64_t load = g.loads[static_cast<size_t>(e)];
    const Doubles of_expert =
        product({row, depth, 1}, transposed ? reference::Strided{w, 1, depth} : reference::Strided{w, columns, 1}, load,
                columns, depth);
    all.insert(all.end(), of_expert.begin(), of_expert.end());
    row += load * depth;
  }
  return all;
}

/// The part of `got` with rows has this error, and what follows is untouched.
double error_of_rows(const OnDevice& got, const Doubles& expected) {
  const Doubles values = got.doubles();
  const auto at = static_cast<std::ptrdiff_t>(expected.size());
  CHECK(std::all_of(values.begin() + at, values.end(), [](double v) { return v == kPoison; }));
  CHECK(got.intact());
  return error_of({values.begin(), values.begin() + at}, expected);
}

void check_groups(const Groups& g, DType dtype, int64_t shift) {
  CAPTURE(g.experts(), g.rows(), g.spare, g.in, g.out, shift, name_of(dtype));
  const int64_t weights = g.experts() * g.in * g.out;
  const Doubles x = random_doubles(g.rows() * g.in, dtype, 1), dy = random_doubles(g.rows() * g.out, dtype, 2),
                weight = random_doubles(weights, dtype, 3), old = random_doubles(weights, DType::f32, 4);
  const Doubles y = by_expert(g, x, weight, g.in, g.out, true), dx = by_expert(g, dy, weight, g.out, g.in, false);
  Doubles dweight, sums = old;
  int64_t longest = 1;
  for (int64_t e = 0, row = 0; e < g.experts(); row += g.loads[static_cast<size_t>(e++)]) {
    const int64_t load = g.loads[static_cast<size_t>(e)];
    const Doubles of_expert =
        product({dy.data() + row * g.out, 1, g.out}, {x.data() + row * g.in, g.in, 1}, g.out, g.in, load);
    dweight.insert(dweight.end(), of_expert.begin(), of_expert.end());
    longest = std::max(longest, load);
  }
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += dweight[i];
  OnDevice on_x(with_poison(x, g.spare * g.in), dtype, "x", shift),
      on_dy(with_poison(dy, g.spare * g.out), dtype, "dy", shift), on_weight(weight, dtype, "weight", shift);
  const Held<int32_t> offsets(g.offsets(), "offsets");
  for_machines([&](LaunchContext& context) {
    OnDevice on_y(Doubles(static_cast<size_t>(g.max_rows() * g.out), kPoison), dtype, "y", shift),
        on_dx(Doubles(static_cast<size_t>(g.max_rows() * g.in), kPoison), dtype, "dx", shift),
        on_dweight(weights, DType::f32, "dweight", shift);
    const GroupedForward forward{
        on_x.data(), on_weight.data(), on_y.data(), offsets.data(), g.max_rows(), g.experts(), g.in, g.out, dtype};
    grouped_forward(context, forward);
    CHECK(error_of_rows(on_y, y) <= forward_tolerance(dtype, g.in));
    const std::vector<uint8_t> first = on_y.bytes();
    grouped_forward(context, forward);
    CHECK(on_y.bytes() == first);
    grouped_backward_input(context, {on_dy.data(), on_weight.data(), on_dx.data(), offsets.data(), g.max_rows(),
                                     g.experts(), g.in, g.out, dtype});
    CHECK(error_of_rows(on_dx, dx) <= gradient_tolerance(dtype, g.out));
    GroupedBackwardWeight backward{on_x.data(),    on_dy.data(), on_dweight.data<float>(),
                                   offsets.data(), g.max_rows(), g.experts(),
                                   g.in,           g.out,        dtype};
    grouped_backward_weight(context, backward);
    CHECK(error_of_rows(on_dweight, dweight) <= gradient_tolerance(DType::f32, longest));
    on_dweight.set(old);
    backward.accumulate = true;
    grouped_backward_weight(context, backward);
    CHECK(error_of_rows(on_dweight, sums) <= gradient_tolerance(DType::f32, longest));
  });
}

void check_router(int64_t tokens, int64_t width, int64_t experts, DType dtype, int64_t shift) {
  CAPTURE(tokens, width, experts, shift, name_of(dtype));
  const Doubles x = random_doubles(tokens * width, dtype, 1), weight = random_doubles(experts * width, dtype, 2),
                dlogits = random_doubles(tokens * experts, DType::f32, 3),
                old = random_doubles(tokens * width, dtype, 4),
                old_weight = random_doubles(experts * width, DType::f32, 5);
  const Doubles logits = product({x.data(), width, 1}, {weight.data(), 1, width}, tokens, experts, width);
  const Doubles dx = product({dlogits.data(), experts, 1}, {weight.data(), width, 1}, tokens, width, experts);
  const Doubles dweight = product({dlogits.data(), 1, experts}, {x.data(), width, 1}, experts, width, tokens);
  Doubles sum = old, sum_weight = old_weight;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += dx[i];
  for (size_t i = 0; i < sum_weight.size(); ++i) sum_weight[i] += dweight[i];
  OnDevice on_x(x, dtype, "x", shift), on_weight(weight, dtype, "weight", shift),
      on_dlogits(dlogits, DType::f32, "dlogits", shift);
  for_machines([&](LaunchContext& context) {
    OnDevice on_logits(tokens * experts, DType::f32, "logits", shift), on_dx(tokens * width, dtype, "dx", shift),
        on_dweight(experts * width, DType::f32, "dweight", shift);
    router_linear(context, {on_x.data(), on_weight.data(), on_logits.data<float>(), tokens, width, experts, dtype});
    // Products of bfloat16 are exact in float, so that the logits have the error of float sums.
    CHECK(error_of(on_logits.doubles(), logits) <= forward_tolerance(DType::f32, width));
    for (const bool accumulate : {false, true}) {
      on_dx.set(old), on_dweight.set(old_weight);
      router_linear_backward_input(context, {on_dlogits.data<float>(), on_weight.data(), on_dx.data(), tokens, width,
                                             experts, dtype, accumulate});
      // One rounding of the sum: half of a unit in the last of the 8 bits of bfloat16.
      CHECK(error_of(on_dx.doubles(), accumulate ? sum : dx) <=
            (dtype == DType::f32 ? gradient_tolerance(dtype, experts) : 0x1.01p-9 * 2));
      router_linear_backward_weight(context, {on_dlogits.data<float>(), on_x.data(), on_dweight.data<float>(), tokens,
                                              width, experts, dtype, accumulate});
      CHECK(error_of(on_dweight.doubles(), accumulate ? sum_weight : dweight) <=
            gradient_tolerance(DType::f32, tokens));
    }
    CHECK((on_logits.intact() && on_dx.intact() && on_dweight.intact()));
  });
}

}  // namespace

TEST_CASE("grouped products: every expert multiplies its rows, and other rows stay") {
  for (const DType dtype : kTypes)
    for (const Groups& g : groups())
      for (const int64_t shift : {0, 1}) check_groups(g, dtype, shift);
}

TEST_CASE("grouped products: without rows, gradients of weights are zero or unchanged") {
  const Held<int32_t> offsets({0, 0, 0}, "offsets");
  for_machines([&](LaunchContext& context) {
    OnDevice dweight(Doubles(2 * 3 * 5, kPoison), DType::f32, "dweight");
    GroupedBackwardWeight args{.dweight = dweight.data<float>(),
                               .offsets = offsets.data(),
                               .experts = 2,
                               .in = 3,
                               .out = 5,
                               .accumulate = true};
    grouped_backward_weight(context, args);
    CHECK(dweight.doubles() == Doubles(30, kPoison));
    args.accumulate = false;
    grouped_backward_weight(context, args);
    CHECK(dweight.doubles() == Doubles(30, 0.0));
  });
}

TEST_CASE("router product: logits and gradients equal double, with float sums of bfloat16") {
  std::vector<std::array<int64_t, 3>> shapes = {{1, 1, 1},    {3, 16, 8},   {5, 33, 7},
                                                {66, 24, 65}, {70, 130, 4}, {520, 9, 3}};
  if (on_cpu()) shapes.insert(shapes.end(), {{300, 700, 17}, {1030, 64, 128}});
  for (const DType dtype : kTypes)
    for (const auto& [tokens, width, experts] : shapes)
      for (const int64_t shift : {0, 1}) check_router(tokens, width, experts, dtype, shift);
}

TEST_CASE("router product: without tokens, the gradient of the weight is zero or unchanged") {
  for_machines([&](LaunchContext& context) {
    OnDevice dweight(Doubles(6, kPoison), DType::f32, "dweight");
    router_linear_backward_weight(context,
                                  {.dweight = dweight.data<float>(), .width = 3, .experts = 2, .accumulate = true});
    CHECK(dweight.doubles() == Doubles(6, kPoison));
    router_linear_backward_weight(context, {.dweight = dweight.data<float>(), .width = 3, .experts = 2});
    CHECK(dweight.doubles() == Doubles(6, 0.0));
  });
}

TEST_CASE("products of experts: impossible operands are refused, costs equal the formulas in the headers", "[.][cpu]") {
  LaunchContext context = a_context();
  CHECK_THROWS_WITH(grouped_forward(context, {.max_rows = 1, .experts = 0, .in = 1, .out = 1}),
                    "[grouped_forward] experts is 0, need at least 1.");
  CHECK_THROWS_WITH(
      grouped_backward_input(context, {.max_rows = 1, .experts = 1, .in = 1, .out = 1, .dtype = DType::i32}),
      "[grouped_backward_input] the element type is int32, need float32 or bfloat16.");
  CHECK_THROWS_AS(grouped_backward_weight(context, {.max_rows = 1, .experts = 1, .in = 1, .out = 1}), ShapeError);
  CHECK_THROWS_AS(router_linear(context, {.tokens = 1, .width = 1, .experts = 1}), ShapeError);
  CHECK_NOTHROW(grouped_forward(context, {.experts = 1, .in = 1, .out = 1}));
  CHECK_NOTHROW(router_linear(context, {.width = 1, .experts = 1}));
  const Cost forward = grouped_forward_cost({.max_rows = 10, .experts = 2, .in = 3, .out = 5, .dtype = DType::bf16});
  CHECK(forward.flops == 300);
  CHECK(forward.bytes == (80 + 30) * 2 + 12);
  CHECK(grouped_backward_input_cost({.max_rows = 10, .experts = 2, .in = 3, .out = 5}).bytes == (80 + 30) * 4 + 12);
  CHECK(grouped_backward_weight_cost(
            {.max_rows = 10, .experts = 2, .in = 3, .out = 5, .dtype = DType::bf16, .accumulate = true})
            .bytes == 80 * 2 + 240 + 12);
  CHECK(router_linear_cost({.tokens = 10, .width = 3, .experts = 2, .dtype = DType::bf16}).bytes == 36 * 2 + 80);
  CHECK(router_linear_backward_input_cost({.tokens = 10, .width = 3, .experts = 2, .accumulate = true}).bytes ==
        80 + (6 + 60) * 4);
  CHECK(router_linear_backward_weight_cost({.tokens = 10, .width = 3, .experts = 2, .dtype = DType::bf16}).bytes ==
        80 + 60 + 24);
}
