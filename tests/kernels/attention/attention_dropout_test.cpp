// SPDX-License-Identifier: Apache-2.0
// Dropout of attention's weights against the whole matrix in double, with masks from the definition.

#include "engine/base/check.h"
#include "kernels/attention/attention.h"
#include "tests/kernels/common/op_test.h"
#include "tests/reference/attention.h"
#include "tests/reference/dropout.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::Matrix;

namespace {

constexpr double kRate = 0.3;
constexpr DropoutSample kSample{.step = 6, .sequence = 17};

struct Shape {
  int64_t tokens, heads, kv_heads, head_dim;
  int64_t first_head = 0;

  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t out_width() const { return heads * head_dim; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

AttentionDropout dropout_of(const Shape& s) {
  return {.samples = &kSample, .key = dropout_key(4, "weights"), .rate = kRate, .first_head = s.first_head};
}

/// m / (1 - rate) of every query and key of a head.
Matrix factors_of(const Shape& s, int64_t head) {
  Matrix factors(s.tokens, s.tokens);
  for (int64_t t = 0; t < s.tokens; ++t)
    for (int64_t k = 0; k < s.tokens; ++k) {
      const reference::Place at{dropout_key(4, "weights") + static_cast<uint64_t>(s.first_head + head), kSample.step,
                                kSample.sequence, static_cast<uint32_t>(t), static_cast<uint32_t>(k)};
      factors(t, k) = reference::is_kept(at, kRate) ? 1 / (1 - kRate) : 0;
    }
  return factors;
}

Matrix part(const Doubles& rows, int64_t tokens, int64_t width, int64_t begin, int64_t columns) {
  Matrix m(tokens, columns);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < columns; ++j) m(t, j) = rows[static_cast<size_t>(t * width + begin + j)];
  return m;
}
void add(Doubles& rows, const Matrix& m, int64_t width, int64_t begin) {
  for (Eigen::Index t = 0; t < m.rows(); ++t)
    for (Eigen::Index j = 0; j < m.cols(); ++j) rows[static_cast<size_t>(t * width + begin + j)] += m(t, j);
}

/// Output and, from `dout`, the gradient of packed rows.
struct Result {
  Doubles out, dqkv;
};
Result in_double(const Shape& s, const Doubles& qkv, const Doubles& dout) {
  Result r{Doubles(static_cast<size_t>(s.tokens * s.out_width())), Doubles(qkv.size())};
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t group = h / (s.heads / s.kv_heads), at_q = h * s.head_dim, at_k = s.out_width() + group * s.head_dim,
                  at_v = at_k + s.kv_heads * s.head_dim;
    const auto of = [&](int64_t begin) { return part(qkv, s.tokens, s.width(), begin, s.head_dim); };
    const Matrix q = of(at_q), k = of(at_k), v = of(at_v), f = factors_of(s, h),
                 d = part(dout, s.tokens, s.out_width(), at_q, s.head_dim),
                 p = reference::attention(q, k, v, s.scale()).weights;
    add(r.out, p.cwiseProduct(f) * v, s.out_width(), at_q);
    const Matrix dp = (d * v.transpose()).cwiseProduct(f);
    Matrix ds = p.cwiseProduct(dp);
    const Eigen::VectorXd sums = ds.rowwise().sum();
    ds -= sums.asDiagonal() * p;
    add(r.dqkv, s.scale() * ds * k, s.width(), at_q);
    add(r.dqkv, s.scale() * ds.transpose() * q, s.width(), at_k);
    add(r.dqkv, p.cwiseProduct(f).transpose() * d, s.width(), at_v);
  }
  return r;
}

}  // namespace

TEST_CASE("attention dropout: the gradients of the reference are its central differences", "[kernels]") {
  const Shape s{6, 2, 1, 3};
  const Doubles qkv = random_doubles(s.tokens * s.width(), DType::f32, 1),
                dout = random_doubles(s.tokens * s.out_width(), DType::f32, 2);
  const Doubles slopes =
      central_differences([&](const Doubles& x) { return dot(dout, in_double(s, x, dout).out); }, qkv);
  CHECK(error_of(in_double(s, qkv, dout).dqkv, slopes) < 1e-8);
}

TEST_CASE("attention dropout: output and gradients equal the whole matrix in double", "[kernels]") {
  for (const Shape& s : {Shape{1, 1, 1, 8}, Shape{7, 2, 2, 12}, Shape{64, 2, 1, 16, 4}, Shape{130, 4, 2, 20}})
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Doubles qkv = random_doubles(s.tokens * s.width(), dtype, 3),
                    dout = random_doubles(s.tokens * s.out_width(), dtype, 4);
      const Result expected = in_double(s, qkv, dout);
      const AttentionDropout dropout = dropout_of(s);
      const int64_t at_k = s.out_width(), at_v = at_k + s.kv_heads * s.head_dim;
      for (int threads : {1, 3}) {
        CAPTURE(s.tokens, s.heads, name_of(dtype), threads);
        ThreadPool pool(threads);
        LaunchContext context;
        context.pool = &pool;
        Tensor x(qkv, dtype), d(dout, dtype), out(s.tokens * s.out_width(), dtype), dqkv(s.tokens * s.width(), dtype),
            lse(s.tokens * s.heads, DType::f32);
        const AttentionForward forward{.q = x.data(),
                                       .k = x.data(at_k),
                                       .v = x.data(at_v),
                                       .out = out.data(),
                                       .lse = lse.data<float>(),
                                       .batch = 1,
                                       .tokens = s.tokens,
                                       .heads = s.heads,
                                       .kv_heads = s.kv_heads,
                                       .head_dim = s.head_dim,
                                       .q_stride = s.width(),
                                       .kv_stride = s.width(),
                                       .out_stride = s.out_width(),
                                       .scale = static_cast<float>(s.scale()),
                                       .dtype = dtype,
                                       .dropout = &dropout};
        attention_forward(context, forward);
        CHECK(error_of(out.doubles(), expected.out) < forward_tolerance(dtype, s.head_dim + s.tokens));
        AttentionBackward backward{.dout = d.data(),
                                   .q = x.data(),
                                   .k = x.data(at_k),
                                   .v = x.data(at_v),
                                   .out = out.data(),
                                   .lse = lse.data<float>(),
                                   .dq = dqkv.data(),
                                   .dk = dqkv.data(at_k),
                                   .dv = dqkv.data(at_v),
                                   .batch = 1,
                                   .tokens = s.tokens,
                                   .heads = s.heads,
                                   .kv_heads = s.kv_heads,
                                   .head_dim = s.head_dim,
                                   .q_stride = s.width(),
                                   .kv_stride = s.width(),
                                   .out_stride = s.out_width(),
                                   .dq_stride = s.width(),
                                   .dkv_stride = s.width(),
                                   .scale = static_cast<float>(s.scale()),
                                   .dtype = dtype,
                                   .dropout = &dropout};
        Tensor workspace(attention_backward_workspace_elems(backward), DType::f32);
        backward.workspace = workspace.data<float>();
        attention_backward(context, backward);
        CHECK(error_of(dqkv.doubles(), expected.dqkv) < gradient_tolerance(dtype, s.head_dim + s.tokens, 2));
        CHECK((out.guard_intact() && dqkv.guard_intact() && workspace.guard_intact()));
      }
    }
}
