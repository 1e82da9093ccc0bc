// SPDX-License-Identifier: Apache-2.0
// GELU against double.

#include "kernels/gelu/gelu.h"

#include "engine/base/check.h"
#include "tests/kernels/common/op_test.h"
#include "tests/reference/activations.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

void check(const Doubles& x, DType dtype, bool in_place) {
  INFO(fmt::format("{} {} elements, in place {}", name_of(dtype), x.size(), in_place));
  const int64_t elems = static_cast<int64_t>(x.size());
  const Doubles dy = random_doubles(elems, dtype, 5);
  Doubles y(x.size()), dx(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = reference::gelu(x[i]), dx[i] = dy[i] * reference::gelu_derivative(x[i]);
  for_isas_and_threads<GeluForward>(SLIP_EVERY_ISA(gelu_forward_cpu),
                                    [&](LaunchContext& context, auto function, const std::string& label) {
                                      INFO(label);
                                      Tensor from(x, dtype), other(elems, dtype);
                                      Tensor& to = in_place ? from : other;
                                      function(context, {from.data(), to.data(), elems, dtype});
                                      // Detects the erf form (5e-4 apart where |x| is about 2) and a coefficient with a
                                      // wrong third digit.
                                      CHECK(error_of(to.doubles(), y) < forward_tolerance(dtype, 1));
                                      CHECK(to.guard_intact());
                                    });
  for_isas_and_threads<GeluBackward>(SLIP_EVERY_ISA(gelu_backward_cpu),
                                     [&](LaunchContext& context, auto function, const std::string& label) {
                                       INFO(label);
                                       Tensor from(x, dtype), d(dy, dtype), other(elems, dtype);
                                       Tensor& to = in_place ? d : other;
                                       function(context, {d.data(), from.data(), to.data(), elems, dtype});
                                       CHECK(error_of(to.doubles(), dx) < gradient_tolerance(dtype, 1));
                                       CHECK(to.guard_intact());
                                     });
}

}  // namespace

TEST_CASE("gelu: the reference's derivative is its central difference", "[kernels]") {
  const Doubles x = random_doubles(50, DType::f32, 9, 2.0);
  Doubles derivative;
  for (double value : x) derivative.push_back(reference::gelu_derivative(value));
  const auto loss = [](const Doubles& v) {
    double total = 0;
    for (double value : v) total += reference::gelu(value);
    return total;
  };
  CHECK(error_of(central_differences(loss, x), derivative) < 1e-6);
}

TEST_CASE("gelu: equals the reference at any length, in place or not", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t elems : {1, 3, 7, 8, 9, 15, 16, 17, 31, 4095, 8193, 12289})
      for (bool in_place : {false, true}) check(random_doubles(elems, dtype, 11, 2.0), dtype, in_place);
}

TEST_CASE("gelu: equals the reference on a fine grid", "[kernels]") {
  Doubles grid;
  for (int i = -1600; i <= 1600; ++i) grid.push_back(i / 256.0);
  check(grid, DType::f32, false);
}

TEST_CASE("gelu: large inputs give 0 or the input, with slopes 0 or 1; NaN stays NaN", "[kernels]") {
  const Doubles far = {-3e38, -1e20, -100, -30, 30, 100, 1e20, 3e38, NAN};
  for_isas_and_threads<GeluBackward>(SLIP_EVERY_ISA(gelu_backward_cpu),
                                     [&](LaunchContext& context, auto function, const std::string&) {
                                       Tensor x(far, DType::f32), dy(Doubles(9, 1.0), DType::f32), dx(9, DType::f32);
                                       function(context, {dy.data(), x.data(), dx.data(), 9, DType::f32});
                                       for (size_t i = 0; i < 8; ++i)
                                         CHECK(std::abs(dx.doubles()[i] - (far[i] > 0 ? 1.0 : 0.0)) < 1e-30);
                                       CHECK(std::isnan(dx.doubles()[8]));
                                     });
  for_isas_and_threads<GeluForward>(SLIP_EVERY_ISA(gelu_forward_cpu),
                                    [&](LaunchContext& context, auto function, const std::string&) {
                                      Tensor x(far, DType::f32), y(9, DType::f32);
                                      function(context, {x.data(), y.data(), 9, DType::f32});
                                      for (size_t i = 0; i < 8; ++i)
                                        CHECK(std::abs(y.doubles()[i] - (far[i] > 0 ? x.doubles()[i] : 0.0)) < 1e-30);
                                      CHECK(std::isnan(y.doubles()[8]));
                                    });
}

TEST_CASE("gelu: impossible operands are refused, costs equal the formula in the header", "[kernels]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  CHECK_THROWS_WITH(gelu_forward(context, {nullptr, nullptr, -1, DType::f32}),
                    "[gelu_forward] elems is -1, need at least 0.");
  CHECK_THROWS_AS(gelu_backward(context, {nullptr, nullptr, nullptr, 1, DType::f32}), ShapeError);
  CHECK_NOTHROW(gelu_forward(context, {nullptr, nullptr, 0, DType::f32}));
  CHECK(gelu_forward_cost({nullptr, nullptr, 7, DType::bf16}).bytes == 28);
  CHECK(gelu_backward_cost({nullptr, nullptr, nullptr, 7, DType::f32}).bytes == 84);
}
