// SPDX-License-Identifier: Apache-2.0
// Sums of squares against extended precision; the same bits for all threads and instruction sets.

#include "kernels/sum_squares/sum_squares.h"

#include "engine/base/check.h"
#include "kernels/sum_squares/sum_squares_cpu.h"
#include "tests/kernels/products/cases.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

TEST_CASE("the sum equals extended precision and does not depend on threads or instruction set") {
  for (int64_t elems : {0, 1, 15, 17, 4095, 4096, 4097, 65537, 4096 * 1024 + 3}) {
    CAPTURE(elems);
    const auto x = random<float>(elems, "x");
    long double want = 0.0L;
    for (float value : x) want += static_cast<long double>(value) * static_cast<long double>(value);
    double first = -1.0;
    for_each_machine([&](Isa isa, LaunchContext& context) {
      double got = 3.0;
      SLIP_CALL_ON(isa, sum_squares_cpu(context, {x.data(), elems, &got}));
      CHECK(std::abs(got - static_cast<double>(want)) <= 1e-14 * static_cast<double>(want));
      if (first < 0.0) first = got;
      CHECK(got == first);
      double more = 3.0;
      SLIP_CALL_ON(isa, sum_squares_cpu(context, {x.data(), elems, &more, true}));
      CHECK(more == 3.0 + got);
    });
  }
}

TEST_CASE("the tolerance sees a sum kept in float and a missing last element") {
  const auto x = random<float>(100003, "x");
  LaunchContext context = context_of(2);
  double got = 0.0;
  sum_squares(context, {x.data(), 100003, &got});
  float in_float = 0.0f;
  for (float value : x) in_float += value * value;
  CHECK(std::abs(got - static_cast<double>(in_float)) > 1e-14 * got);
  double without_last = 0.0;
  sum_squares(context, {x.data(), 100002, &without_last});
  CHECK(std::abs(got - without_last) > 1e-14 * got);
}

TEST_CASE("a missing result is refused") {
  LaunchContext context = context_of(1);
  CHECK_THROWS_AS(sum_squares(context, {nullptr, 0, nullptr}), ShapeError);
  CHECK(sum_squares_cost({nullptr, 10, nullptr}).bytes == 48);
}
