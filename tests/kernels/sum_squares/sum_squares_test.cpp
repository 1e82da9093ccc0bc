// SPDX-License-Identifier: Apache-2.0
// Sums of squares against extended precision; every device, instruction set and number of threads has the same bits.

#include "kernels/sum_squares/sum_squares.h"

#include "engine/base/check.h"
#include "tests/kernels/common/backend.h"
#include "tests/kernels/common/cases.h"
#include "tests/reference/elementwise.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

/// Sums of the parts of x by one thread of the CPU, into `results` values of 7.
std::vector<double> on_host(const Doubles& x, const std::vector<SumSquaresPart>& parts, int64_t results) {
  Tensor host(x, DType::f32);
  LaunchContext context = context_of(1);
  std::vector<double> sums(static_cast<size_t>(results), 7.0);
  sum_squares(context, {host.data<float>(), parts.data(), std::ssize(parts), sums.data()});
  return sums;
}

}  // namespace

TEST_CASE("sum of squares: the CPU's bits, which equal extended precision") {
  for (int64_t elems : {0, 1, 15, 17, 4095, 4096, 4097, 65537, 4096 * (on_cpu() ? 1024 : 300) + 3}) {
    CAPTURE(elems);
    const Doubles x = random_doubles(elems, DType::f32, 3);
    const SumSquaresPart whole{0, elems, 0};
    const std::vector<double> want = on_host(x, {whole}, 1);
    const double exact = reference::sum_squares(x);
    CHECK(std::abs(want[0] - exact) <= 1e-14 * exact);
    const OnDevice on(x, DType::f32, "x");
    for_machines([&](LaunchContext& context) {
      const Held<double> sum({3.0});
      sum_squares(context, {on.data<float>(), &whole, 1, sum.data()});
      CHECK(sum.values() == want);
    });
  }
}

TEST_CASE(
    "sum of squares: parts have the bits of each alone, aligned or not, in one pair of launches up to 96 of them") {
  for (const int64_t count : {1, 7, 96, 97, 200}) {
    std::vector<SumSquaresPart> parts;
    int64_t begin = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t elems = i % 5 == 3 ? 0 : i % 7 == 1 ? 4096 * (1 + i % 3) + i : 1 + i * 37 % 300;
      parts.push_back({begin, elems, (i * 3 + 1) % (4 * count)});
      begin += elems + i % 3;
    }
    const Doubles x = random_doubles(begin, DType::f32, 3);
    std::vector<double> want(static_cast<size_t>(4 * count), 7.0);
    for (const SumSquaresPart& part : parts)
      want[static_cast<size_t>(part.result)] =
          on_host({x.begin() + part.begin, x.begin() + part.begin + part.elems}, {{0, part.elems, 0}}, 1)[0];
    const OnDevice on(x, DType::f32, "x");
    for_machines([&](LaunchContext& context) {
      const Held<double> results(std::vector<double>(want.size(), 7.0));
      const int64_t before = emulation::launches();
      sum_squares(context, {on.data<float>(), parts.data(), count, results.data()});
      if (backend == Backend::emulated) CHECK(emulation::launches() - before == 2 * ((count + 95) / 96));
      CHECK(results.values() == want);
      CHECK(results.intact());
    });
  }
}

TEST_CASE("sum of squares: the tolerance sees a sum kept in float and a missing last element", "[.][cpu]") {
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

TEST_CASE("sum of squares: a missing result is refused; the cost is that of the parts", "[.][cpu]") {
  LaunchContext context = context_of(1);
  const SumSquaresPart parts[] = {{0, 10, 0}, {10, 20, 1}};
  double result = 0.0;
  CHECK_THROWS_AS(sum_squares(context, {nullptr, parts, 2, nullptr}), ShapeError);
  CHECK_THROWS_AS(sum_squares(context, {nullptr, parts, 2, &result}), ShapeError);
  CHECK_NOTHROW(sum_squares(context, {}));
  CHECK(sum_squares_cost({nullptr, parts, 2, nullptr}).bytes == 136);
}
