// SPDX-License-Identifier: Apache-2.0
// Layer norm against double.

#include "kernels/layer_norm/layer_norm.h"

#include "engine/base/check.h"
#include "kernels/matmul/matmul.h"
#include "tests/kernels/common/op_test.h"
#include "tests/reference/norms.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr float kEps = 1e-5f;

void check_forward(int64_t rows, int64_t width, DType dtype, bool with_delta) {
  INFO(fmt::format("{} {} x {} delta {}", name_of(dtype), rows, width, with_delta));
  const uint32_t seed = static_cast<uint32_t>(rows * 1000 + width);
  const Doubles x = random_doubles(rows * width, dtype, seed), delta = random_doubles(rows * width, dtype, seed + 1);
  const Doubles weight = random_doubles(width, dtype, seed + 2), bias = random_doubles(width, dtype, seed + 3);
  Doubles total = x;
  if (with_delta)
    for (size_t i = 0; i < x.size(); ++i) total[i] += delta[i];
  total = Tensor(total, dtype).doubles();
  const auto expected = reference::norm(total, weight, bias, kEps, true);
  Tensor d(delta, dtype), w(weight, dtype), b(bias, dtype);
  for (bool in_place : {false, true})
    for_isas_and_threads<LayerNormForward>(
        SLIP_EVERY_ISA(layer_norm_forward_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
          INFO(label);
          Tensor from(x, dtype), sum(rows * width, dtype), y(rows * width, dtype), mean(rows, DType::f32),
              inv(rows, DType::f32);
          Tensor& to = in_place ? from : sum;
          function(context, {from.data(), with_delta ? d.data() : nullptr, with_delta ? to.data() : nullptr, w.data(),
                             b.data(), y.data(), mean.data<float>(), inv.data<float>(), rows, width, kEps, dtype});
          if (with_delta) CHECK(to.doubles() == total);
          // Detects a missing eps (width 1: infinite), a missing bias, width - 1 in the variance at every width here.
          CHECK(error_of(y.doubles(), expected.y) < forward_tolerance(dtype, width));
          CHECK(error_of(mean.doubles(), expected.mean) < forward_tolerance(DType::f32, width));
          CHECK(error_of(inv.doubles(), expected.inv) < forward_tolerance(DType::f32, width));
          CHECK((y.guard_intact() && from.guard_intact() && sum.guard_intact() && mean.guard_intact() &&
                 inv.guard_intact()));
        });
}

void check_backward(int64_t rows, int64_t width, DType dtype, bool with_residual, bool accumulate) {
  INFO(fmt::format("{} {} x {} residual {} accumulate {}", name_of(dtype), rows, width, with_residual, accumulate));
  const uint32_t seed = static_cast<uint32_t>(rows * 1000 + width);
  const Doubles x = random_doubles(rows * width, dtype, seed), dy = random_doubles(rows * width, dtype, seed + 1);
  const Doubles weight = random_doubles(width, dtype, seed + 2), more = random_doubles(rows * width, dtype, seed + 3);
  const auto forward = reference::norm(x, weight, Doubles(weight.size()), kEps, true);
  auto expected = reference::norm_gradients(dy, x, weight, kEps, true);
  const Doubles before = random_doubles(width, DType::f32, seed + 4);
  for (size_t i = 0; i < x.size() && with_residual; ++i) expected.dx[i] += more[i];
  for (size_t i = 0; i < before.size() && accumulate; ++i)
    expected.dweight[i] += before[i], expected.dbias[i] += before[i];
  Tensor first_weight(0, DType::f32), first_bias(0, DType::f32);
  std::string first_isa;
  for_isas_and_threads<LayerNormBackward>(
      SLIP_EVERY_ISA(layer_norm_backward_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
        INFO(label);
        Tensor d(dy, dtype), from(x, dtype), w(weight, dtype), mean(forward.mean, DType::f32),
            inv(forward.inv, DType::f32);
        Tensor dx(more, dtype), dw(before, DType::f32), db(before, DType::f32);
        Tensor workspace(layer_norm_backward_workspace_elems(rows, width), DType::f32);
        function(context, {d.data(), from.data(), w.data(), mean.data<float>(), inv.data<float>(),
                           with_residual ? dx.data() : nullptr, dx.data(), dw.data<float>(), db.data<float>(),
                           workspace.data<float>(), rows, width, dtype, accumulate});
        // Catches a lost mean(g), a lost mean(g n), a lost residual and rows past a block. Below width 3 its
        // terms nearly cancel, so the error is taken against inv * dy * weight as well.
        Doubles got = dx.doubles(), wanted = expected.dx;
        for (size_t i = 0; i < dy.size(); ++i) {
          const double term = forward.inv[i / weight.size()] * dy[i] * weight[i % weight.size()];
          got.push_back(term), wanted.push_back(term);
        }
        CHECK(error_of(got, wanted) < gradient_tolerance(dtype, width));
        CHECK(error_of(dw.doubles(), expected.dweight) < gradient_tolerance(DType::f32, rows));
        CHECK(error_of(db.doubles(), expected.dbias) < gradient_tolerance(DType::f32, rows));
        CHECK((dx.guard_intact() && dw.guard_intact() && db.guard_intact() && workspace.guard_intact()));
        if (label.substr(0, 5) != first_isa) first_isa = label.substr(0, 5), first_weight = dw, first_bias = db;
        CHECK(dw == first_weight);  // bits do not depend on threads
        CHECK(db == first_bias);
      });
}

}  // namespace

TEST_CASE("layer norm: the reference's gradients are its central differences", "[kernels]") {
  const Doubles x = random_doubles(12, DType::f32, 1), dy = random_doubles(12, DType::f32, 2),
                w = random_doubles(4, DType::f32, 3);
  const Doubles b = random_doubles(4, DType::f32, 4);
  const auto gradients = reference::norm_gradients(dy, x, w, 1e-2, true);
  const auto loss = [&](const Doubles& xs, const Doubles& ws, const Doubles& bs) {
    return dot(dy, reference::norm(xs, ws, bs, 1e-2, true).y);
  };
  CHECK(error_of(central_differences([&](const Doubles& v) { return loss(v, w, b); }, x), gradients.dx) < 1e-6);
  CHECK(error_of(central_differences([&](const Doubles& v) { return loss(x, v, b); }, w), gradients.dweight) < 1e-6);
  CHECK(error_of(central_differences([&](const Doubles& v) { return loss(x, w, v); }, b), gradients.dbias) < 1e-6);
}

TEST_CASE("layer norm: forward equals the reference, with and without the sum before it", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t width : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 128, 131})
      for (int64_t rows : {1, 5})
        for (bool with_delta : {false, true}) check_forward(rows, width, dtype, with_delta);
}

TEST_CASE("layer norm: backward equals the reference, bits the same on any number of threads", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t width : {1, 2, 7, 8, 9, 16, 17, 33, 131})
      for (bool residual : {false, true}) check_backward(3, width, dtype, residual, residual);
    for (int64_t rows : {1, 4, 15, 16, 17, 33, 1023, 1025})
      check_backward(rows, 19, dtype, rows % 2 == 0, rows % 3 == 0);
  }
}

TEST_CASE("layer norm: no rows give no gradient", "[kernels]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  float weight[3] = {1, 1, 1}, dweight[3] = {5, 5, 5}, dbias[3] = {5, 5, 5};
  LayerNormBackward args;
  args.weight = weight, args.dweight = dweight, args.dbias = dbias, args.width = 3;
  layer_norm_backward(context, args);
  CHECK((dweight[2] == 0 && dbias[0] == 0));
}

TEST_CASE("layer norm: the sums of dx have the bits of a bias gradient of dx", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool accumulate : {false, true}) {
      const int64_t rows = 37, width = 19;
      ThreadPool pool(2);
      LaunchContext context;
      context.pool = &pool;
      const Doubles values = random_doubles(rows * width, dtype, 1), inv(static_cast<size_t>(rows), 0.5),
                    before = random_doubles(width, DType::f32, 2);
      Tensor dy(values, dtype), x(random_doubles(rows * width, dtype, 3), dtype), w(before, dtype),
          mean(Doubles(static_cast<size_t>(rows)), DType::f32), inv_std(inv, DType::f32);
      Tensor dx(rows * width, dtype), dw(before, DType::f32), db(before, DType::f32), sums(before, DType::f32),
          apart(before, DType::f32), workspace(layer_norm_backward_workspace_elems(rows, width), DType::f32);
      layer_norm_backward(context, {dy.data(), x.data(), w.data(), mean.data<float>(), inv_std.data<float>(), nullptr,
                                    dx.data(), dw.data<float>(), db.data<float>(), workspace.data<float>(), rows, width,
                                    dtype, accumulate, sums.data<float>()});
      matmul_backward_weight(context, {.dy = dx.data(),
                                       .dbias = apart.data<float>(),
                                       .rows = rows,
                                       .out = width,
                                       .dtype = dtype,
                                       .accumulate = accumulate});
      CHECK(sums == apart);
      CHECK(sums.guard_intact());
    }
}

TEST_CASE("layer norm: impossible operands are refused, costs equal the formula in the header", "[kernels]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  LayerNormForward args;
  args.rows = 2;
  CHECK_THROWS_WITH(layer_norm_forward(context, args), "[layer_norm_forward] width is 0, need at least 1.");
  args.width = 3;
  CHECK(layer_norm_forward_cost(args).flops == 9 * 6);
  CHECK(layer_norm_forward_cost(args).bytes == (2 * 6 + 2 * 3) * 4 + 8 * 2);
  float delta = 0;
  args.delta = &delta;
  CHECK_THROWS_WITH(layer_norm_forward(context, args),
                    "[layer_norm_forward] delta is set and sum is null. Pass memory for x + delta in sum.");
  LayerNormBackward backward;
  backward.rows = 2, backward.width = 3, backward.accumulate = true;
  CHECK(layer_norm_backward_cost(backward).bytes == (3 * 6 + 3) * 4 + 4 * 4 * 3 + 8 * 2);
  CHECK(layer_norm_backward_cost(backward).flops == 17 * 6);
  backward.dx_sums = &delta;
  CHECK(layer_norm_backward_cost(backward).bytes == (3 * 6 + 3) * 4 + 6 * 4 * 3 + 8 * 2);
  CHECK(layer_norm_backward_cost(backward).flops == 18 * 6);
  CHECK_THROWS_AS(layer_norm_backward(context, backward), ShapeError);
}
