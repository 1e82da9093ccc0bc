// SPDX-License-Identifier: Apache-2.0
// The linear layer on the emulated device: the requested products and the kernels around them, against double.

#include "kernels/matmul/matmul.h"

#include "tests/emulation/on_device.h"
#include "tests/reference/products.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::Matrix;
using reference::Vector;

namespace {

struct Shape {
  int64_t rows, in, out;
};
// GELU comes from the product if `out` is a multiple of 8, otherwise from a kernel; 1025 rows are 65 blocks of the bias
// gradient. Sums of dx: whole packs, the end of a row, and rows in all lanes of a block, several at once.
const std::vector<Shape> kShapes = {{1, 1, 1},   {2, 3, 5},     {17, 31, 16},        {33, 7, 65},
                                    {35, 40, 3}, {1025, 3, 33}, {16 * 528 + 1, 8, 1}};

Matrix matrix(const Doubles& values, int64_t rows, int64_t columns) {
  return Eigen::Map<const Matrix>(values.data(), rows, columns);
}
template <typename M>
Doubles flat(const M& m) {
  const Matrix copy = m;
  return {copy.data(), copy.data() + copy.size()};
}

/// dx and the sums of its rows, stored and added.
void check_sums(LaunchContext& context, const Shape& s, DType dtype, const OnDevice& dy, const OnDevice& weight,
                const OnDevice* pre, const Matrix& expected) {
  const Doubles before = random_doubles(s.in, DType::f32, 7);
  for (bool accumulate : {false, true}) {
    CAPTURE(accumulate, pre != nullptr);
    OnDevice dx(s.rows * s.in, dtype, "dx"), sums(before, DType::f32, "sums");
    matmul_backward_input(context, {.dy = dy.data(),
                                    .weight = weight.data(),
                                    .dx = dx.data(),
                                    .rows = s.rows,
                                    .in = s.in,
                                    .out = s.out,
                                    .dtype = dtype,
                                    .pre_activation = pre ? pre->data() : nullptr,
                                    .dbias = sums.data<float>(),
                                    .accumulate_bias = accumulate});
    CHECK(error_of(dx.doubles(), flat(expected)) <= gradient_tolerance(dtype, s.out));
    // Each term has the error of an element of dx.
    const Matrix total = expected.colwise().sum() + (accumulate ? 1.0 : 0.0) * matrix(before, 1, s.in);
    CHECK(error_of(sums.doubles(), flat(total)) <=
          gradient_tolerance(DType::f32, s.rows) + gradient_tolerance(dtype, s.out));
    CHECK((dx.intact() && sums.intact()));
  }
}

}  // namespace

TEST_CASE("matmul: forward equals double with bias and GELU") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s : kShapes)
      for (bool biased : {false, true}) {
        CAPTURE(s.rows, s.in, s.out, name_of(dtype), biased);
        const Doubles x = random_doubles(s.rows * s.in, dtype, 1), w = random_doubles(s.out * s.in, dtype, 2),
                      b = random_doubles(s.out, dtype, 3);
        const Vector bias = biased ? Vector(matrix(b, 1, s.out).row(0)) : Vector(Vector::Zero(s.out));
        const Matrix value = reference::linear(matrix(x, s.rows, s.in), matrix(w, s.out, s.in), bias);
        LaunchContext context = cuda_context();
        OnDevice on_x(x, dtype, "x"), on_w(w, dtype, "weight"), on_b(b, dtype, "bias"), y(s.rows * s.out, dtype, "y"),
            pre(s.rows * s.out, dtype, "pre");
        const void* bias_data = biased ? on_b.data() : nullptr;
        matmul_forward(context, {on_x.data(), on_w.data(), bias_data, y.data(), nullptr, s.rows, s.in, s.out, dtype});
        CHECK(error_of(y.doubles(), flat(value)) <= forward_tolerance(dtype, s.in));
        matmul_forward(context,
                       {on_x.data(), on_w.data(), bias_data, y.data(), pre.data(), s.rows, s.in, s.out, dtype});
        CHECK(error_of(pre.doubles(), flat(value)) <= forward_tolerance(dtype, s.in));
        CHECK(error_of(y.doubles(), flat(reference::tanh_gelu(value))) <= forward_tolerance(dtype, s.in));
        CHECK((y.intact() && pre.intact()));
      }
}

TEST_CASE("matmul: gradients of input, weight and bias equal double") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s : kShapes)
      for (bool accumulate : {false, true})
        for (int64_t stride : {s.out, s.out + 3}) {
          CAPTURE(s.rows, s.in, s.out, name_of(dtype), accumulate, stride);
          const Doubles x = random_doubles(s.rows * s.in, dtype, 1), w = random_doubles(s.out * s.in, dtype, 2),
                        wide = random_doubles(s.rows * stride, dtype, 3);
          const Doubles before = random_doubles(s.out * s.in, DType::f32, 4),
                        bias_before = random_doubles(s.out, DType::f32, 5),
                        dx_before = random_doubles(s.rows * s.in, dtype, 6);
          const Matrix dy = matrix(wide, s.rows, stride).leftCols(s.out), mx = matrix(x, s.rows, s.in);
          const double kept = accumulate ? 1.0 : 0.0;
          for_orders([&](LaunchContext& context) {
            OnDevice on_x(x, dtype, "x"), on_w(w, dtype, "weight"), on_wide(wide, dtype, "dy"),
                dx(dx_before, dtype, "dx");
            OnDevice dw(before, DType::f32, "dweight"), db(bias_before, DType::f32, "dbias"),
                on_dy(flat(dy), dtype, "dy");
            matmul_backward_input(context,
                                  {on_dy.data(), on_w.data(), dx.data(), s.rows, s.in, s.out, dtype, accumulate});
            CHECK(error_of(dx.doubles(), flat(reference::linear_dx(dy, matrix(w, s.out, s.in)) +
                                              kept * matrix(dx_before, s.rows, s.in))) <=
                  gradient_tolerance(dtype, s.out));
            if (!accumulate) {
              const Matrix product = reference::linear_dx(dy, matrix(w, s.out, s.in)),
                           slopes = reference::tanh_gelu_slope(mx);
              OnDevice on_pre(x, dtype, "pre");
              matmul_backward_input(
                  context, {on_dy.data(), on_w.data(), dx.data(), s.rows, s.in, s.out, dtype, false, on_pre.data()});
              CHECK(error_of(dx.doubles(), flat(product.cwiseProduct(slopes))) <= gradient_tolerance(dtype, s.out));
              check_sums(context, s, dtype, on_dy, on_w, &on_pre, product.cwiseProduct(slopes));
              check_sums(context, s, dtype, on_dy, on_w, nullptr, product);
            }
            matmul_backward_weight(context, {on_x.data(), on_wide.data(), dw.data<float>(), db.data<float>(), s.rows,
                                             s.in, s.out, dtype, accumulate, stride});
            CHECK(
                error_of(dw.doubles(), flat(reference::linear_dweight(mx, dy) + kept * matrix(before, s.out, s.in))) <=
                gradient_tolerance(DType::f32, s.rows));
            CHECK(error_of(db.doubles(),
                           flat(reference::linear_dbias(dy) + kept * matrix(bias_before, 1, s.out).row(0))) <=
                  gradient_tolerance(DType::f32, s.rows));
            CHECK((dx.intact() && dw.intact() && db.intact()));
          });
        }
}

TEST_CASE("matmul: empty products leave zero gradients and the bias") {
  LaunchContext context = cuda_context();
  OnDevice bias(Doubles{1, 2, 3}, DType::f32, "bias"), y(6, DType::f32, "y"),
      dweight(Doubles(6, 9.0), DType::f32, "dweight"), dbias(Doubles(3, 9.0), DType::f32, "dbias");
  matmul_forward(context, {nullptr, nullptr, bias.data(), y.data(), nullptr, 2, 0, 3});
  CHECK(y.doubles() == Doubles{1, 2, 3, 1, 2, 3});
  matmul_backward_weight(context, {nullptr, nullptr, dweight.data<float>(), dbias.data<float>(), 0, 2, 3});
  CHECK(dweight.doubles() == Doubles(6));
  CHECK(dbias.doubles() == Doubles(3));
  OnDevice dx(Doubles(6, 9.0), DType::f32, "dx"), sums(Doubles(3, 9.0), DType::f32, "sums");
  matmul_backward_input(context, {.dx = dx.data(), .rows = 2, .in = 3, .out = 0, .dbias = sums.data<float>()});
  CHECK((dx.doubles() == Doubles(6) && sums.doubles() == Doubles(3)));
  sums.set(Doubles(3, 9.0));
  matmul_backward_input(context, {.rows = 0, .in = 3, .out = 2, .dbias = sums.data<float>()});
  CHECK(sums.doubles() == Doubles(3));
}
