// SPDX-License-Identifier: Apache-2.0
// Sums of squares against extended precision; the same bits for all threads and instruction sets.

#include "kernels/sum_squares/sum_squares.h"

#include "engine/base/check.h"
#include "tests/kernels/common/cases.h"
#include "tests/reference/elementwise.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

TEST_CASE("the sum equals extended precision and does not depend on threads or instruction set") {
  for (int64_t elems : {0, 1, 15, 17, 4095, 4096, 4097, 65537, 4096 * 1024 + 3}) {
    CAPTURE(elems);
    const auto x = random<float>(elems, "x");
    const double want = reference::sum_squares(x);
    double first = -1.0;
    for_each_machine([&](Isa isa, LaunchContext& context) {
      double got = 3.0;
      const SumSquaresPart whole{0, elems, 0};
      SLIP_CALL_ON(isa, sum_squares_cpu(context, {x.data(), &whole, 1, &got}));
      CHECK(std::abs(got - want) <= 1e-14 * want);
      if (first < 0.0) first = got;
      CHECK(got == first);
    });
  }
}

TEST_CASE("every part has the same sum as alone, at its own place") {
  const auto x = random<float>(20000, "x");
  const std::vector<SumSquaresPart> parts = {{3, 5000, 4}, {5003, 0, 0}, {5003, 1, 3}, {5004, 14996, 1}};
  for_each_machine([&](Isa isa, LaunchContext& context) {
    std::vector<double> got(5, 7.0);
    SLIP_CALL_ON(isa, sum_squares_cpu(context, {x.data(), parts.data(), 4, got.data()}));
    CHECK(got[2] == 7.0);
    for (const SumSquaresPart& part : parts) {
      double alone = 3.0;
      const SumSquaresPart whole{0, part.elems, 0};
      SLIP_CALL_ON(isa, sum_squares_cpu(context, {x.data() + part.begin, &whole, 1, &alone}));
      CHECK(got[static_cast<size_t>(part.result)] == alone);
    }
  });
}

TEST_CASE("the tolerance sees a sum kept in float and a missing last element") {
  const auto x = random<float>(100003, "x");
  LaunchContext context = context_of(2);
  double got = 0.0;
  SumSquaresPart part{0, 100003, 0};
  sum_squares(context, {x.data(), &part, 1, &got});
  float in_float = 0.0f;
  for (float value : x) in_float += value * value;
  CHECK(std::abs(got - static_cast<double>(in_float)) > 1e-14 * got);
  double without_last = 0.0;
  part.elems = 100002;
  sum_squares(context, {x.data(), &part, 1, &without_last});
  CHECK(std::abs(got - without_last) > 1e-14 * got);
}

TEST_CASE("a missing result is refused; the cost is that of the parts") {
  LaunchContext context = context_of(1);
  const SumSquaresPart parts[] = {{0, 10, 0}, {10, 20, 1}};
  double result = 0.0;
  CHECK_THROWS_AS(sum_squares(context, {nullptr, parts, 2, nullptr}), ShapeError);
  CHECK_THROWS_AS(sum_squares(context, {nullptr, parts, 2, &result}), ShapeError);
  CHECK_NOTHROW(sum_squares(context, {}));
  CHECK(sum_squares_cost({nullptr, parts, 2, nullptr}).bytes == 136);
}
