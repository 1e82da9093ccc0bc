// SPDX-License-Identifier: Apache-2.0
// SwiGLU against double.

#include "kernels/swiglu/swiglu.h"

#include "engine/base/check.h"
#include "tests/kernels/common/op_test.h"
#include "tests/reference/activations.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

void check(int64_t rows, int64_t width, DType dtype, bool in_place) {
  INFO(fmt::format("{} {} x {}, in place {}", name_of(dtype), rows, width, in_place));
  const uint32_t seed = static_cast<uint32_t>(rows * 1000 + width);
  const Doubles x = random_doubles(rows * 2 * width, dtype, seed, 2.0),
                dy = random_doubles(rows * width, dtype, seed + 1);
  Doubles y(dy.size()), dx(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i) {
      const size_t gate = static_cast<size_t>(r * 2 * width + i), up = gate + static_cast<size_t>(width),
                   at = static_cast<size_t>(r * width + i);
      y[at] = reference::silu(x[gate]) * x[up];
      dx[gate] = dy[at] * x[up] * reference::silu_derivative(x[gate]);
      dx[up] = dy[at] * reference::silu(x[gate]);
    }
  for_isas_and_threads<SwigluForward>(
      SLIP_EVERY_ISA(swiglu_forward_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
        INFO(label);
        Tensor from(x, dtype), to(rows * width, dtype);
        function(context, {from.data(), to.data(), rows, width, dtype});
        CHECK(error_of(to.doubles(), y) < forward_tolerance(dtype, 1));  // catches up before gate
        CHECK(to.guard_intact());
      });
  for_isas_and_threads<SwigluBackward>(
      SLIP_EVERY_ISA(swiglu_backward_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
        INFO(label);
        Tensor from(x, dtype), d(dy, dtype), other(rows * 2 * width, dtype);
        Tensor& to = in_place ? from : other;
        function(context, {d.data(), from.data(), to.data(), rows, width, dtype});
        CHECK(error_of(to.doubles(), dx) < gradient_tolerance(dtype, 1));  // catches a lost 1 + g (1 - s)
        CHECK(to.guard_intact());
      });
}

}  // namespace

TEST_CASE("swiglu: the reference's derivative is its central difference", "[kernels]") {
  const Doubles x = random_doubles(50, DType::f32, 9, 2.0);
  Doubles derivative;
  for (double value : x) derivative.push_back(reference::silu_derivative(value));
  const auto loss = [](const Doubles& v) {
    double total = 0;
    for (double value : v) total += reference::silu(value);
    return total;
  };
  CHECK(error_of(central_differences(loss, x), derivative) < 1e-6);
}

TEST_CASE("swiglu: equals the reference at any shape, in place or not", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t width : {1, 3, 7, 8, 9, 16, 17, 33, 4099})
      for (int64_t rows : {1, 5})
        for (bool in_place : {false, true}) check(rows, width, dtype, in_place);
}

TEST_CASE("swiglu: impossible operands are refused, costs equal the formula in the header", "[kernels]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  CHECK_THROWS_WITH(swiglu_forward(context, {nullptr, nullptr, 1, 0, DType::f32}),
                    "[swiglu_forward] width is 0, need at least 1.");
  CHECK_THROWS_AS(swiglu_backward(context, {nullptr, nullptr, nullptr, 1, 1, DType::f32}), ShapeError);
  CHECK(swiglu_forward_cost({nullptr, nullptr, 3, 5, DType::bf16}).bytes == 90);
  CHECK(swiglu_backward_cost({nullptr, nullptr, nullptr, 3, 5, DType::f32}).bytes == 300);
}
