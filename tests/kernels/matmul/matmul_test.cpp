// SPDX-License-Identifier: Apache-2.0
// The linear layer against double: the products and the kernels around them, and the mistakes that the tolerances
// detect.

#include "kernels/matmul/matmul.h"

#include <cstring>
#include <limits>

#include "engine/base/check.h"
#include "kernels/gelu/gelu.h"
#include "kernels/matmul/matmul_cpu.h"
#include "tests/kernels/common/backend.h"
#include "tests/kernels/common/cases.h"
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
std::vector<Shape> shapes() {
  if (on_cpu())
    return {{1, 1, 1},      {2, 3, 5},      {17, 31, 13},  {127, 64, 65},
            {129, 256, 33}, {48, 2049, 16}, {33, 7, 1031}, {515, 19, 40}};
  // GELU comes from the product if `out` is a multiple of 8, otherwise from a kernel; 1025 rows are 65 blocks of the
  // bias gradient. Sums of dx: whole packs, the end of a row, and rows in all lanes of a block, several at once.
  return {{1, 1, 1}, {2, 3, 5}, {17, 31, 16}, {33, 7, 65}, {35, 40, 3}, {1025, 3, 33}, {16 * 528 + 1, 8, 1}};
}

template <typename T>
Matrix matrix(const std::vector<T>& values, int64_t rows, int64_t columns, int64_t stride = 0) {
  Matrix m(rows, columns);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      m(r, c) = as_double(values[static_cast<size_t>(r * (stride ? stride : columns) + c)]);
  return m;
}

template <typename T, typename M>
double error_of(const std::vector<T>& got, const M& expected) {
  return relative_error(got, [&](int64_t i) { return expected(i / expected.cols(), i % expected.cols()); });
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
    CHECK(test::error_of(dx.doubles(), flat(expected)) <= gradient_tolerance(dtype, s.out));
    // Each term has the error of an element of dx.
    const Matrix total = expected.colwise().sum() + (accumulate ? 1.0 : 0.0) * matrix(before, 1, s.in);
    CHECK(test::error_of(sums.doubles(), flat(total)) <=
          gradient_tolerance(DType::f32, s.rows) + gradient_tolerance(dtype, s.out));
    CHECK((dx.intact() && sums.intact()));
  }
}

template <typename T>
constexpr double tolerance(double f32, int64_t k) {
  return sizeof(T) == 4 ? f32 * std::sqrt(static_cast<double>(k)) : 0x1p-7;
}

template <typename T>
struct Layer {
  explicit Layer(const Shape& shape) : s(shape) {}
  Shape s;
  std::vector<T> x = random<T>(s.rows * s.in, "x"), weight = random<T>(s.out * s.in, "weight"),
                 bias = random<T>(s.out, "bias"), dy = random<T>(s.rows * s.out, "dy"),
                 y = std::vector<T>(dy.size(), T(7.0f)), pre = y, dx = random<T>(s.rows * s.in, "dx");
  std::vector<float> dweight = random<float>(s.out * s.in, "dweight"), dbias = random<float>(s.out, "dbias");
  DType dtype = dtype_of<T>::value;
  Matrix mx = matrix(x, s.rows, s.in), mw = matrix(weight, s.out, s.in), mdy = matrix(dy, s.rows, s.out);
  Vector mb = matrix(bias, 1, s.out).row(0);
};

/// Central differences of sum(dy * f) along every element of `at`.
template <typename F>
Matrix slope(Matrix at, const Matrix& dy, const F& f) {
  Matrix result(at.rows(), at.cols());
  for (Eigen::Index i = 0; i < at.size(); ++i) {
    const double center = at.data()[i], h = 1e-5;
    at.data()[i] = center + h;
    const double above = dy.cwiseProduct(f(at)).sum();
    at.data()[i] = center - h;
    result.data()[i] = (above - dy.cwiseProduct(f(at)).sum()) / (2 * h);
    at.data()[i] = center;
  }
  return result;
}

/// `values` with rows of `wide` elements instead of `columns`, filled up with `fill`.
template <typename T>
std::vector<T> padded(const std::vector<T>& values, int64_t rows, int64_t columns, int64_t wide, T fill) {
  std::vector<T> all(static_cast<size_t>(rows * wide), fill);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(values.begin() + r * columns, columns, all.begin() + r * wide);
  return all;
}

template <typename T>
void check_padding(const Shape& s, int64_t wide) {
  const Layer<T> l(s);
  const int64_t padding = wide - s.out;
  const T nan(std::numeric_limits<float>::quiet_NaN());
  // Not zero, as on the card: the products must not read it.
  const std::vector<T> weight = padded(l.weight, 1, s.out * s.in, wide * s.in, nan),
                       dy = padded(l.dy, s.rows, s.out, wide, nan);
  for_machines([&](LaunchContext& context) {
    Layer<T> expected = l;
    std::vector<T> y(static_cast<size_t>(s.rows * wide), T(3.0f)), dx = l.dx;
    matmul_forward(context,
                   {l.x.data(), l.weight.data(), nullptr, expected.y.data(), nullptr, s.rows, s.in, s.out, l.dtype});
    matmul_forward(context,
                   {l.x.data(), weight.data(), nullptr, y.data(), nullptr, s.rows, s.in, wide, l.dtype, padding});
    CHECK(same_bits(y, padded(expected.y, s.rows, s.out, wide, T(0.0f))));
    for (bool accumulate : {false, true}) {
      matmul_backward_input(
          context, {l.dy.data(), l.weight.data(), expected.dx.data(), s.rows, s.in, s.out, l.dtype, accumulate});
      matmul_backward_input(
          context, {dy.data(), weight.data(), dx.data(), s.rows, s.in, wide, l.dtype, accumulate, nullptr, padding});
      CHECK(same_bits(dx, expected.dx));
      std::vector<float> dweight = padded(expected.dweight, 1, s.out * s.in, wide * s.in, 5.0f);
      matmul_backward_weight(context, {l.x.data(), l.dy.data(), expected.dweight.data(), nullptr, s.rows, s.in, s.out,
                                       l.dtype, accumulate, s.out});
      matmul_backward_weight(context, {l.x.data(), dy.data(), dweight.data(), nullptr, s.rows, s.in, wide, l.dtype,
                                       accumulate, wide, padding});
      CHECK(same_bits(dweight, padded(expected.dweight, 1, s.out * s.in, wide * s.in, accumulate ? 5.0f : 0.0f)));
    }
  });
}

}  // namespace

TEST_CASE("matmul: the references of the linear layer agree with central differences", "[.][cpu]") {
  const Layer<float> l({5, 7, 3});
  const auto close = [](const Matrix& a, const Matrix& b) {
    return (a - b).cwiseAbs().maxCoeff() <= 1e-6 * b.cwiseAbs().maxCoeff();
  };
  CHECK(close(reference::linear_dx(l.mdy, l.mw),
              slope(l.mx, l.mdy, [&](const Matrix& x) { return reference::linear(x, l.mw, l.mb); })));
  CHECK(close(reference::linear_dweight(l.mx, l.mdy),
              slope(l.mw, l.mdy, [&](const Matrix& w) { return reference::linear(l.mx, w, l.mb); })));
  CHECK(close(reference::linear_dbias(l.mdy),
              slope(l.mb, l.mdy, [&](const Matrix& b) { return reference::linear(l.mx, l.mw, b.row(0)); })));
}

TEST_CASE("matmul: forward equals double with bias and GELU") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s : shapes())
      for (bool biased : {false, true}) {
        CAPTURE(s.rows, s.in, s.out, name_of(dtype), biased);
        const Doubles x = random_doubles(s.rows * s.in, dtype, 1), w = random_doubles(s.out * s.in, dtype, 2),
                      b = random_doubles(s.out, dtype, 3);
        const Vector bias = biased ? Vector(matrix(b, 1, s.out).row(0)) : Vector(Vector::Zero(s.out));
        const Matrix value = reference::linear(matrix(x, s.rows, s.in), matrix(w, s.out, s.in), bias);
        for_machines([&](LaunchContext& context) {
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
        });
      }
}

TEST_CASE("matmul: gradients of input, weight and bias equal double") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s : shapes())
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
          for_machines([&](LaunchContext& context) {
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
  LaunchContext context = a_context();
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

TEST_CASE("matmul: the gradient through GELU is the product times the slope, in one call or two", "[.][cpu]") {
  const Layer<float> f({33, 24, 17});
  LaunchContext context = a_context();
  std::vector<float> dx(f.dx.size()), two(f.dx.size());
  matmul_backward_input(context, {f.dy.data(), f.weight.data(), dx.data(), 33, 24, 17, DType::f32, false, f.x.data()});
  CHECK(error_of(dx, reference::linear_dx(f.mdy, f.mw).cwiseProduct(reference::tanh_gelu_slope(f.mx)).eval()) <= 1e-5);
  matmul_backward_input(context, {f.dy.data(), f.weight.data(), two.data(), 33, 24, 17, DType::f32});
  gelu_backward(context, {two.data(), f.x.data(), two.data(), 33 * 24, DType::f32});
  CHECK(dx == two);
  const Matrix slope_here = slope(f.mx, Matrix::Ones(33, 24), [](const Matrix& v) { return reference::tanh_gelu(v); });
  CHECK((slope_here - reference::tanh_gelu_slope(f.mx)).cwiseAbs().maxCoeff() <= 1e-6);
  CHECK_THROWS_AS(matmul_backward_input(
                      context, {f.dy.data(), f.weight.data(), dx.data(), 33, 24, 17, DType::f32, true, f.x.data()}),
                  ShapeError);
}

TEST_CASE("matmul: the sums over the rows of dx have the bits of a bias gradient of dx", "[.][cpu]") {
  for (const Shape& s : {Shape{1, 1, 1}, Shape{33, 24, 17}, Shape{129, 300, 3}})
    for (bool of_gelu : {false, true})
      for (bool accumulate : {false, true}) {
        CAPTURE(s.rows, s.in, s.out, of_gelu, accumulate);
        const Layer<bfloat16> l(s);
        LaunchContext context = a_context();
        std::vector<bfloat16> dx(l.dx.size()), alone(l.dx.size());
        std::vector<float> sums(static_cast<size_t>(s.in), 3.0f), apart = sums;
        MatmulBackwardInput args{.dy = l.dy.data(),
                                 .weight = l.weight.data(),
                                 .dx = alone.data(),
                                 .rows = s.rows,
                                 .in = s.in,
                                 .out = s.out,
                                 .dtype = DType::bf16,
                                 .pre_activation = of_gelu ? l.x.data() : nullptr};
        const Cost without = matmul_backward_input_cost(args);
        matmul_backward_input(context, args);
        args.dx = dx.data(), args.dbias = sums.data(), args.accumulate_bias = accumulate;
        matmul_backward_input(context, args);
        matmul_backward_weight(context, {.dy = alone.data(),
                                         .dbias = apart.data(),
                                         .rows = s.rows,
                                         .out = s.in,
                                         .dtype = DType::bf16,
                                         .accumulate = accumulate});
        CHECK(std::memcmp(dx.data(), alone.data(), dx.size() * sizeof dx[0]) == 0);
        CHECK(sums == apart);
        CHECK(matmul_backward_input_cost(args).flops == without.flops + s.rows * s.in);
        CHECK(matmul_backward_input_cost(args).bytes == without.bytes + (accumulate ? 8 : 4) * s.in);
      }
  std::vector<float> sums(3, 9.0f);
  LaunchContext context = a_context();
  matmul_backward_input(context, {.rows = 0, .in = 3, .out = 2, .dbias = sums.data()});
  CHECK(sums == std::vector<float>(3, 0.0f));
}

TEST_CASE("matmul: the tolerances see a transposed weight, a wrong GELU and a dropped row of the bias gradient",
          "[.][cpu]") {
  const Shape s{65, 64, 64};
  Layer<bfloat16> l(s);  // the widest tolerance
  LaunchContext context = a_context();
  matmul_forward(context,
                 {l.x.data(), l.weight.data(), l.bias.data(), l.y.data(), l.pre.data(), s.rows, s.in, s.out, l.dtype});
  const Matrix value = reference::linear(l.mx, l.mw, l.mb);
  CHECK(error_of(l.pre, value) <= 0x1p-7);
  CHECK(error_of(l.pre, reference::linear(l.mx, l.mw.transpose(), l.mb)) > 0x1p-7);
  CHECK(error_of(l.pre, reference::linear(l.mx, l.mw, Vector::Zero(s.out))) > 0x1p-7);
  CHECK(error_of(l.y, value) > 0x1p-7);
  matmul_backward_weight(context,
                         {l.x.data(), l.dy.data(), l.dweight.data(), l.dbias.data(), s.rows, s.in, s.out, l.dtype});
  CHECK(error_of(l.dbias, reference::linear_dbias(l.mdy.topRows(s.rows - 1))) > 0x1p-7);
  CHECK(error_of(l.dweight, reference::linear_dweight(l.mx.topRows(s.rows - 1), l.mdy.topRows(s.rows - 1))) > 0x1p-7);
  matmul_backward_input(context, {l.dy.data(), l.weight.data(), l.dx.data(), s.rows, s.in, s.out, l.dtype});
  CHECK(error_of(l.dx, reference::linear_dx(l.mdy, l.mw)) <= 0x1p-7);
  CHECK(error_of(l.dx, reference::linear_dx(l.mdy, l.mw.transpose())) > 0x1p-7);
  // The float tolerances detect a product whose operands lost the bits below bfloat16.
  Layer<float> f(s);
  matmul_forward(context, {f.x.data(), f.weight.data(), nullptr, f.y.data(), nullptr, s.rows, s.in, s.out});
  Matrix rounded = f.mx;
  for (Eigen::Index i = 0; i < rounded.size(); ++i)
    rounded.data()[i] = as_double(bfloat16(static_cast<float>(rounded.data()[i])));
  CHECK(error_of(f.y, reference::linear(rounded, f.mw, Vector::Zero(s.out))) > tolerance<float>(1e-5, s.in));
  // Through GELU: no slope, the slope of its erf form, half of the product rule, and the function for the slope.
  matmul_backward_input(
      context, {f.dy.data(), f.weight.data(), f.dx.data(), s.rows, s.in, s.out, DType::f32, false, f.x.data()});
  const Matrix product = reference::linear_dx(f.mdy, f.mw);
  const auto error_with = [&](const Matrix& slopes) { return error_of(f.dx, product.cwiseProduct(slopes).eval()); };
  const double through_gelu = 1e-5;
  CHECK(error_with(reference::tanh_gelu_slope(f.mx)) <= through_gelu);
  CHECK(error_with(Matrix::Ones(s.rows, s.in)) > through_gelu);
  CHECK(error_with(f.mx.unaryExpr([](double v) {
          return 0.5 * std::erfc(-v / std::sqrt(2.0)) + v * std::exp(-0.5 * v * v) / std::sqrt(2.0 * M_PI);
        })) > through_gelu);
  CHECK(error_with(reference::tanh_gelu(f.mx).cwiseQuotient(f.mx)) > through_gelu);
  CHECK(error_with(reference::tanh_gelu(f.mx)) > through_gelu);
}

TEST_CASE("matmul: a chunk of the columns of dy gives a chunk of the weight gradient", "[.][cpu]") {
  const int64_t rows = 37, in = 24, vocab = 101, first = 40, chunk = 33;
  const auto x = random<float>(rows * in, "x"), dy = random<float>(rows * vocab, "dy");
  const Matrix whole = reference::linear_dweight(matrix(x, rows, in), matrix(dy, rows, vocab));
  for (int threads : {1, 2, 3}) {
    std::vector<float> dweight(chunk * in), dbias(chunk);
    LaunchContext context = context_of(threads);
    matmul_backward_weight(context, {x.data(), dy.data() + first, dweight.data(), dbias.data(), rows, in, chunk,
                                     DType::f32, false, vocab});
    CHECK(error_of(dweight, whole.middleRows(first, chunk).eval()) <= 1e-5 * std::sqrt(37.0));
    CHECK(error_of(dbias, reference::linear_dbias(matrix(dy, rows, vocab)).segment(first, chunk).eval()) <=
          1e-5 * std::sqrt(37.0));
  }
}

TEST_CASE("matmul: padding of a linear layer is not multiplied: the bits, and the cost, are those without it",
          "[.][cpu]") {
  for (const auto& [s, wide] : {std::pair{Shape{2, 3, 5}, 16},
                                {Shape{17, 31, 13}, 13},
                                {Shape{127, 64, 65}, 128},
                                {Shape{33, 7, 1031}, 1152},
                                {Shape{4, 5, 0}, 128}}) {
    CAPTURE(s.rows, s.in, s.out, wide);
    check_padding<float>(s, wide);
    check_padding<bfloat16>(s, wide);
    const int64_t padding = wide - s.out;
    const auto same = [](const Cost& a, const Cost& b) { return a.flops == b.flops && a.bytes == b.bytes; };
    CHECK(same(matmul_forward_cost({.rows = s.rows, .in = s.in, .out = wide, .padding = padding}),
               matmul_forward_cost({.rows = s.rows, .in = s.in, .out = s.out})));
    CHECK(same(matmul_backward_input_cost({.rows = s.rows, .in = s.in, .out = wide, .padding = padding}),
               matmul_backward_input_cost({.rows = s.rows, .in = s.in, .out = s.out})));
    CHECK(same(matmul_backward_weight_cost({.rows = s.rows, .in = s.in, .out = wide, .padding = padding}),
               matmul_backward_weight_cost({.rows = s.rows, .in = s.in, .out = s.out})));
  }
}

TEST_CASE("matmul: tiles cover the result, are no more than the threads, and cut the longer side", "[.][cpu]") {
  for (int threads : {1, 2, 3, 7, 16})
    for (const Shape& s : {Shape{1, 5, 1}, Shape{256, 768, 50257}, Shape{50257, 256, 768}, Shape{1000, 1000, 1000},
                           Shape{17, 4000, 16}}) {
      CAPTURE(threads, s.rows, s.in, s.out);
      const TileSplit t = split_tiles(s.rows, s.out, s.in, threads);
      CHECK(t.m_tiles * t.n_tiles <= threads);
      CHECK((t.m_tile * (t.m_tiles - 1) < s.rows && t.m_tile * t.m_tiles >= s.rows));
      CHECK((t.n_tile * (t.n_tiles - 1) < s.out && t.n_tile * t.n_tiles >= s.out));
    }
  CHECK(split_tiles(256, 50257, 768, 2).n_tiles == 2);
  CHECK(split_tiles(50257, 768, 256, 2).m_tiles == 2);
  CHECK(split_tiles(4, 4, 4, 8).m_tiles * split_tiles(4, 4, 4, 8).n_tiles == 1);
}

TEST_CASE("matmul: operands that do not fit are refused with an error, and costs count flops and bytes", "[.][cpu]") {
  LaunchContext context = a_context();
  float value = 0.0f;
  CHECK_THROWS_AS(matmul_forward(context, {&value, &value, nullptr, &value, nullptr, -1, 1, 1}), ShapeError);
  CHECK_THROWS_AS(matmul_forward(context, {nullptr, &value, nullptr, &value, nullptr, 1, 1, 1}), ShapeError);
  CHECK_THROWS_AS(matmul_forward(context, {&value, &value, nullptr, &value, nullptr, 1, 1, 1, DType::f64}), ShapeError);
  CHECK_THROWS_AS(matmul_backward_weight(context, {&value, &value, &value, nullptr, 1, 1, 2, DType::f32, false, 1}),
                  ShapeError);
  for (int64_t padding : {-1, 2}) {
    CHECK_THROWS_AS(
        matmul_forward(context,
                       {.x = &value, .weight = &value, .y = &value, .rows = 1, .in = 1, .out = 1, .padding = padding}),
        ShapeError);
    CHECK_THROWS_AS(
        matmul_backward_input(
            context, {.dy = &value, .weight = &value, .dx = &value, .rows = 1, .in = 1, .out = 1, .padding = padding}),
        ShapeError);
    CHECK_THROWS_AS(
        matmul_backward_weight(
            context, {.x = &value, .dy = &value, .dweight = &value, .rows = 1, .in = 1, .out = 1, .padding = padding}),
        ShapeError);
  }
  context.kind = DeviceKind::sim;
  CHECK_THROWS_AS(matmul_forward(context, {&value, &value, nullptr, &value, nullptr, 1, 1, 1}), ResourceError);
  CHECK(matmul_forward_cost({nullptr, nullptr, nullptr, nullptr, nullptr, 2, 3, 5, DType::bf16}).flops == 60);
  CHECK(matmul_forward_cost({nullptr, nullptr, nullptr, nullptr, nullptr, 2, 3, 5, DType::bf16}).bytes ==
        2 * (6 + 15 + 10));
  CHECK(matmul_backward_weight_cost({nullptr, nullptr, nullptr, nullptr, 2, 3, 5, DType::bf16, true}).bytes ==
        2 * 16 + 4 * 30);
}
