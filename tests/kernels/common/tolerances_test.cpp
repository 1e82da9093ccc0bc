// SPDX-License-Identifier: Apache-2.0
// The tolerances of these ops are narrow enough: results of wrong kernels are outside each of them.
//
// A mutant is a formula with one mistake, in double. The kernel's own result must differ from it by more than the
// tolerance of the op's test; from the true formula it differs by less.

#include "engine/base/check.h"
#include "kernels/attention/attention.h"
#include "kernels/gelu/gelu.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/kernels/common/op_test.h"
#include "tests/reference/activations.h"
#include "tests/reference/attention.h"
#include "tests/reference/norms.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::Matrix;

namespace {

struct OneThread {
  ThreadPool pool{1};
  LaunchContext context;
  OneThread() { context.pool = &pool; }
};

template <typename Formula>
Doubles of_each(const Doubles& x, Formula formula) {
  Doubles y;
  for (double value : x) y.push_back(formula(value));
  return y;
}

Doubles times(Doubles x, const Doubles& factor) {
  for (size_t i = 0; i < x.size(); ++i) x[i] *= factor[i];
  return x;
}

void caught(const std::string& mistake, const Doubles& got, const Doubles& mutant, double tolerance) {
  INFO(mistake << ": " << error_of(got, mutant) << " from the kernel, tolerance " << tolerance);
  CHECK(error_of(got, mutant) > tolerance);
}

/// Rows of width weight.size(), normalised by `inv(sum of squares about centre, mean)`.
template <typename Inverse>
Doubles normalised(const Doubles& x, const Doubles& weight, const Doubles& bias, bool centre, Inverse inverse) {
  Doubles y(x.size());
  const size_t width = weight.size();
  for (size_t row = 0; row < x.size(); row += width) {
    double mean = 0, squares = 0;
    for (size_t i = 0; i < width; ++i) mean += x[row + i] / static_cast<double>(width);
    if (!centre) mean = 0;
    for (size_t i = 0; i < width; ++i) squares += (x[row + i] - mean) * (x[row + i] - mean);
    for (size_t i = 0; i < width; ++i) y[row + i] = (x[row + i] - mean) * inverse(squares) * weight[i] + bias[i];
  }
  return y;
}

/// The gradient of a norm without one of its two mean terms.
Doubles norm_dx(const Doubles& dy, const Doubles& x, const Doubles& weight, const reference::NormResult& forward,
                bool mean_g, bool mean_gn) {
  Doubles dx(x.size());
  const size_t width = weight.size();
  for (size_t row = 0; row < x.size(); row += width) {
    const double mean = forward.mean[row / width], inv = forward.inv[row / width];
    double g = 0, gn = 0;
    for (size_t i = 0; i < width; ++i) {
      g += dy[row + i] * weight[i] / static_cast<double>(width);
      gn += dy[row + i] * weight[i] * (x[row + i] - mean) * inv / static_cast<double>(width);
    }
    for (size_t i = 0; i < width; ++i)
      dx[row + i] = inv * (dy[row + i] * weight[i] - (mean_g ? g : 0) - (mean_gn ? gn * (x[row + i] - mean) * inv : 0));
  }
  return dx;
}

}  // namespace

TEST_CASE("tolerances: attention without its scale, with a mask off by one, with the wrong key-value head",
          "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const int64_t tokens = 37, dim = 16, width = 6 * dim,
                  out_width = 4 * dim;  // four heads, one pair of key and value heads
    const Doubles x = random_doubles(tokens * width, dtype, 11), d = random_doubles(tokens * out_width, dtype, 12);
    const Doubles twin = random_doubles(tokens * width, dtype, 13);
    const auto part = [&](const Doubles& rows, int64_t stride, int64_t at) {
      Matrix m(tokens, dim);
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t e = 0; e < dim; ++e) m(t, e) = rows[static_cast<size_t>(t * stride + at + e)];
      return m;
    };
    const auto flat = [](const Matrix& m) { return Doubles(m.data(), m.data() + m.size()); };
    const float scale = 0.25f;
    Tensor qkv(x, dtype), out(tokens * out_width, dtype), lse(tokens * 4, DType::f32), dout(d, dtype),
        dqkv(tokens * width, dtype);
    OneThread one;
    attention_forward(one.context, {qkv.data(), qkv.data(4 * dim), qkv.data(5 * dim), out.data(), lse.data<float>(), 1,
                                    tokens, 4, 1, dim, width, width, out_width, scale, dtype});
    AttentionBackward args = {dout.data(),
                              qkv.data(),
                              qkv.data(4 * dim),
                              qkv.data(5 * dim),
                              out.data(),
                              lse.data<float>(),
                              dqkv.data(),
                              dqkv.data(4 * dim),
                              dqkv.data(5 * dim),
                              nullptr,
                              1,
                              tokens,
                              4,
                              1,
                              dim,
                              width,
                              width,
                              out_width,
                              width,
                              width,
                              scale,
                              dtype};
    Tensor workspace(attention_backward_workspace_elems(args), DType::f32);
    args.workspace = workspace.data<float>();
    attention_backward(one.context, args);

    const Matrix q = part(x, width, 0), k = part(x, width, 4 * dim), v = part(x, width, 5 * dim),
                 g = part(d, out_width, 0);
    const Doubles got = flat(part(out.doubles(), out_width, 0)), got_dq = flat(part(dqkv.doubles(), width, 0)),
                  got_dk = flat(part(dqkv.doubles(), width, 4 * dim)),
                  got_dv = flat(part(dqkv.doubles(), width, 5 * dim));
    const double forward = forward_tolerance(dtype, dim + tokens),
                 gradient = gradient_tolerance(dtype, dim + tokens, 2);
    REQUIRE(error_of(got, flat(reference::attention(q, k, v, scale).out)) < forward);
    REQUIRE(error_of(got_dq, flat(reference::attention_gradients(g, q, k, v, scale).dq)) < gradient);
    caught("scale 1", got, flat(reference::attention(q, k, v, 1.0).out), forward);
    caught("scale 1, dq", got_dq, flat(reference::attention_gradients(g, q, k, v, 1.0).dq), gradient);
    // A query that does not see its own token: the answers of the previous row, on the query of this row.
    Matrix blind = Matrix::Zero(tokens, dim);
    for (int64_t t = 1; t < tokens; ++t) {
      Eigen::VectorXd weights = (scale * (k.topRows(t) * q.row(t).transpose())).array().exp();
      blind.row(t) = (weights / weights.sum()).transpose() * v.topRows(t);
    }
    caught("a mask off by one", got, flat(blind), forward);
    caught("the keys of another head", got, flat(reference::attention(q, part(twin, width, 4 * dim), v, scale).out),
           forward);
    // Four query heads share the keys and values.
    Matrix dk = Matrix::Zero(tokens, dim), dv = dk, sideways = dk, unscaled = dk;
    for (int64_t h = 0; h < 4; ++h) {
      const Matrix q_h = part(x, width, h * dim), g_h = part(d, out_width, h * dim);
      const auto gradients = reference::attention_gradients(g_h, q_h, k, v, scale);
      dk += gradients.dk, dv += gradients.dv;
      sideways += reference::attention(q_h, k, v, scale).weights * g_h;
      unscaled += reference::attention_gradients(g_h, q_h, k, v, 1.0).dv;
    }
    REQUIRE(error_of(got_dk, flat(dk)) < gradient);
    REQUIRE(error_of(got_dv, flat(dv)) < gradient);
    const auto one_head = reference::attention_gradients(g, q, k, v, scale);
    caught("dk of one head of four", got_dk, flat(one_head.dk), gradient);
    caught("dv of one head of four", got_dv, flat(one_head.dv), gradient);
    caught("dv with the weights not transposed", got_dv, flat(sideways), gradient);
    caught("scale 1, dv", got_dv, flat(unscaled), gradient);
    // Queries that do not see their own token contribute nothing to the last value, and too much to the others.
    Matrix blind_dv = Matrix::Zero(tokens, dim);
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t t = 1; t < tokens; ++t) {
        const Eigen::VectorXd weights =
            (scale * (k.topRows(t) * part(x, width, h * dim).row(t).transpose())).array().exp();
        blind_dv.topRows(t) += weights / weights.sum() * part(d, out_width, h * dim).row(t);
      }
    caught("dv with a mask off by one", got_dv, flat(blind_dv), gradient);
  }
}

TEST_CASE("tolerances: GELU in its erf form, without its cube, and a derivative without its second term", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Doubles x = random_doubles(500, dtype, 21, 2.0), d = random_doubles(500, dtype, 22);
    Tensor from(x, dtype), to(500, dtype), dy(d, dtype), dx(500, dtype);
    OneThread one;
    gelu_forward(one.context, {from.data(), to.data(), 500, dtype});
    gelu_backward(one.context, {dy.data(), from.data(), dx.data(), 500, dtype});
    const double forward = forward_tolerance(dtype, 1), gradient = gradient_tolerance(dtype, 1);
    REQUIRE(error_of(to.doubles(), of_each(x, reference::gelu)) < forward);
    if (dtype == DType::f32) {  // both are less than a bfloat16 step of the largest value away
      caught("erf", to.doubles(), of_each(x, [](double v) { return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0))); }),
             forward);
      caught("no cube", to.doubles(),
             of_each(x, [](double v) { return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * v)); }), forward);
    }
    caught("no half", to.doubles(), of_each(x, [](double v) { return 2 * reference::gelu(v); }), forward);
    const auto halved = [](double v) {
      return 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    };
    caught("no second term", dx.doubles(), times(of_each(x, halved), d), gradient);
  }
}

TEST_CASE("tolerances: SwiGLU with its halves exchanged, and a derivative without its second term", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const int64_t width = 250;
    const Doubles gate = random_doubles(width, dtype, 31), up = random_doubles(width, dtype, 32),
                  d = random_doubles(width, dtype, 33);
    Doubles both = gate;
    both.insert(both.end(), up.begin(), up.end());
    Tensor from(both, dtype), to(width, dtype), dy(d, dtype), dx(2 * width, dtype);
    OneThread one;
    swiglu_forward(one.context, {from.data(), to.data(), 1, width, dtype});
    swiglu_backward(one.context, {dy.data(), from.data(), dx.data(), 1, width, dtype});
    REQUIRE(error_of(to.doubles(), times(of_each(gate, reference::silu), up)) < forward_tolerance(dtype, 1));
    caught("up before gate", to.doubles(), times(of_each(up, reference::silu), gate), forward_tolerance(dtype, 1));
    Doubles dgate = dx.doubles();
    dgate.resize(static_cast<size_t>(width));
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    REQUIRE(error_of(dgate, times(times(of_each(gate, reference::silu_derivative), up), d)) <
            gradient_tolerance(dtype, 1));
    caught("no second term", dgate, times(times(of_each(gate, sigmoid), up), d), gradient_tolerance(dtype, 1));
  }
}

TEST_CASE("tolerances: norms with the wrong divisor, without eps, weight or bias, and gradients that lost a mean",
          "[kernels]") {
  const int64_t rows = 5, width = 33;
  const double eps = 1e-5, n = static_cast<double>(width);
  for (DType dtype : {DType::f32, DType::bf16}) {
    // Rows of variance 1e-3, so that eps is a hundredth of it.
    const Doubles x = random_doubles(rows * width, dtype, 41, 0.03), dy = random_doubles(rows * width, dtype, 42);
    const Doubles weight = random_doubles(width, dtype, 43), bias = random_doubles(width, dtype, 44),
                  nothing(static_cast<size_t>(width)), ones(static_cast<size_t>(width), 1.0);
    Tensor from(x, dtype), w(weight, dtype), b(bias, dtype), y(rows * width, dtype), mean(rows, DType::f32),
        inv(rows, DType::f32), g(dy, dtype), dx(rows * width, dtype), dw(nothing, DType::f32), db(nothing, DType::f32);
    OneThread one;
    const auto with = [&](double divisor, double added) {
      return [=](double squares) { return 1 / std::sqrt(squares / divisor + added); };
    };
    const double gradient = gradient_tolerance(dtype, width), of_rows = gradient_tolerance(DType::f32, rows);

    layer_norm_forward(one.context, {from.data(), nullptr, nullptr, w.data(), b.data(), y.data(), mean.data<float>(),
                                     inv.data<float>(), rows, width, static_cast<float>(eps), dtype});
    double forward = forward_tolerance(dtype, width);
    REQUIRE(error_of(y.doubles(), normalised(x, weight, bias, true, with(n, eps))) < forward);
    if (dtype == DType::f32) {  // a hundredth and less: no bfloat16 value shows them
      caught("width - 1", y.doubles(), normalised(x, weight, bias, true, with(n - 1, eps)), forward);
      caught("no eps", y.doubles(), normalised(x, weight, bias, true, with(n, 0)), forward);
    }
    caught("no mean", y.doubles(), normalised(x, weight, bias, false, with(n, eps)), forward);
    caught("no weight", y.doubles(), normalised(x, ones, bias, true, with(n, eps)), forward);
    caught("no bias", y.doubles(), normalised(x, weight, nothing, true, with(n, eps)), forward);
    const auto layer = reference::norm(x, weight, bias, eps, true);
    Tensor workspace(layer_norm_backward_workspace_elems(rows, width), DType::f32);
    layer_norm_backward(one.context,
                        {g.data(), from.data(), w.data(), mean.data<float>(), inv.data<float>(), nullptr, dx.data(),
                         dw.data<float>(), db.data<float>(), workspace.data<float>(), rows, width, dtype, false});
    REQUIRE(error_of(dx.doubles(), norm_dx(dy, x, weight, layer, true, true)) < gradient);
    caught("no mean(g)", dx.doubles(), norm_dx(dy, x, weight, layer, false, true), gradient);
    caught("no mean(g n)", dx.doubles(), norm_dx(dy, x, weight, layer, true, false), gradient);
    const Doubles less(dy.begin(), dy.end() - width), less_x(x.begin(), x.end() - width);
    const auto last_row_lost = reference::norm_gradients(less, less_x, weight, eps, true);
    caught("dweight without its last row", dw.doubles(), last_row_lost.dweight, of_rows);
    caught("dbias without its last row", db.doubles(), last_row_lost.dbias, of_rows);

    rms_norm_forward(one.context, {from.data(), nullptr, nullptr, w.data(), y.data(), inv.data<float>(), rows, width,
                                   static_cast<float>(eps), dtype});
    forward = forward_tolerance(dtype, width, 2);
    REQUIRE(error_of(y.doubles(), normalised(x, weight, nothing, false, with(n, eps))) < forward);
    if (dtype == DType::f32) {
      caught("RMS, width - 1", y.doubles(), normalised(x, weight, nothing, false, with(n - 1, eps)), forward);
      caught("RMS, no eps", y.doubles(), normalised(x, weight, nothing, false, with(n, 0)), forward);
    }
    caught("RMS, a mean taken off", y.doubles(), normalised(x, weight, nothing, true, with(n, eps)), forward);
    caught("RMS, no weight", y.doubles(), normalised(x, ones, nothing, false, with(n, eps)), forward);
    const auto rms = reference::norm(x, weight, {}, eps, false);
    Tensor rms_workspace(rms_norm_backward_workspace_elems(rows, width), DType::f32);
    rms_norm_backward(one.context, {g.data(), from.data(), w.data(), inv.data<float>(), nullptr, dx.data(),
                                    dw.data<float>(), rms_workspace.data<float>(), rows, width, dtype, false});
    REQUIRE(error_of(dx.doubles(), norm_dx(dy, x, weight, rms, false, true)) < gradient);
    caught("RMS, no mean(g n)", dx.doubles(), norm_dx(dy, x, weight, rms, false, false), gradient);
    caught("RMS, dweight without its last row", dw.doubles(),
           reference::norm_gradients(less, less_x, weight, eps, false).dweight, of_rows);
  }
}

TEST_CASE("tolerances: a rotary embedding of neighbours, of the position before, and the wrong way round",
          "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const int64_t tokens = 9, dim = 16;
    const Doubles x = random_doubles(tokens * dim, dtype, 51);
    Tensor table(tokens * dim, DType::f32), turned(x, dtype);
    rope_table(table.data<float>(), tokens, dim, 10000.0f);
    OneThread one;
    rope(one.context, {turned.data(), 1, tokens, 1, dim, dim, 10000.0f, 0, false, dtype, table.data<float>()});
    const auto rotated = [&](int64_t offset, bool inverse, bool neighbours) {
      Doubles all;
      for (int64_t t = 0; t < tokens; ++t) {
        Doubles head(x.begin() + t * dim, x.begin() + (t + 1) * dim), paired(head);
        const auto at = [&](size_t j) { return neighbours ? (j < dim / 2 ? 2 * j : 2 * (j - dim / 2) + 1) : j; };
        for (size_t j = 0; j < head.size(); ++j) paired[j] = head[at(j)];
        reference::rotate(paired, t + offset, 10000.0, inverse);
        for (size_t j = 0; j < head.size(); ++j) head[at(j)] = paired[j];
        all.insert(all.end(), head.begin(), head.end());
      }
      return all;
    };
    const double tolerance = forward_tolerance(dtype, 2);
    REQUIRE(error_of(turned.doubles(), rotated(0, false, false)) < tolerance);
    caught("neighbours", turned.doubles(), rotated(0, false, true), tolerance);
    caught("a position off by one", turned.doubles(), rotated(1, false, false), tolerance);
    caught("the wrong way round", turned.doubles(), rotated(0, true, false), tolerance);
  }
}
