// SPDX-License-Identifier: Apache-2.0
// Attention against the whole matrix in double.

#include "kernels/attention/attention.h"

#include "engine/base/check.h"
#include "tests/kernels/common/op_test.h"
#include "tests/reference/packed_attention.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::add_head, reference::head_of, reference::Matrix;

namespace {

struct Shape : reference::AttentionShape {
  int64_t window = 0;
  int64_t longest = 0;  // document; 0: none
};

/// For each of q, k, v separately, so that a small one is not hidden by a large one.
double part_error(const Doubles& got, const Doubles& expected, int64_t width, int64_t begin, int64_t end) {
  Doubles g, e;
  for (size_t i = 0; i < got.size(); ++i)
    if (static_cast<int64_t>(i) % width >= begin && static_cast<int64_t>(i) % width < end)
      g.push_back(got[i]), e.push_back(expected[i]);
  return error_of(g, e);
}

void check(const Shape& s, DType dtype, double spread = 1.0, float scale = 0.0f) {
  const int64_t width = s.width(), out_width = s.out_width(), rows = s.batch * s.tokens;
  const uint32_t seed = static_cast<uint32_t>(s.tokens * 1000 + s.head_dim);
  INFO(fmt::format("seed {} {} B{} T{} H{}/{} E{}", seed, name_of(dtype), s.batch, s.tokens, s.heads, s.kv_heads,
                   s.head_dim));
  const Doubles qkv = random_doubles(rows * width, dtype, seed, spread),
                dout = random_doubles(rows * out_width, dtype, seed + 1);
  if (scale == 0.0f) scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const std::vector<int32_t> begins = s.longest > 0 ? reference::document_begins(s, s.longest) : std::vector<int32_t>();
  const reference::PackedAttention e = s.longest > 0
                                           ? reference::packed_documents(s, qkv, dout, scale, s.window, begins)
                                           : reference::packed_attention(s, qkv, dout, scale, s.window);
  const int64_t at_k = s.heads * s.head_dim, at_v = at_k + s.kv_heads * s.head_dim;
  Tensor x(qkv, dtype), d(dout, dtype), first_out(0, dtype), first_dqkv(0, dtype);
  std::string first_isa;
  const int32_t* const documents = begins.empty() ? nullptr : begins.data();
  const auto run = [&](LaunchContext& context, CpuFunction<AttentionForward> forward,
                       CpuFunction<AttentionBackward> backward, const std::string& label) {
    INFO(label);
    Tensor out(rows * out_width, dtype), dqkv(rows * width, dtype), lse(rows * s.heads, DType::f32);
    forward(context, {x.data(), x.data(at_k), x.data(at_v), out.data(), lse.data<float>(), s.batch, s.tokens, s.heads,
                      s.kv_heads, s.head_dim, width, width, out_width, scale, dtype, s.window, documents});
    // Detects a missing 1/sqrt(E), a mask off by one and a wrong key-value head: each is above 1e-2.
    CHECK(error_of(out.doubles(), e.out) < forward_tolerance(dtype, s.head_dim + s.tokens));
    CHECK(error_of(lse.doubles(), e.lse) < forward_tolerance(DType::f32, s.head_dim));
    AttentionBackward args = {
        d.data(),    x.data(),        x.data(at_k),    x.data(at_v), out.data(), lse.data<float>(),
        dqkv.data(), dqkv.data(at_k), dqkv.data(at_v), nullptr,      s.batch,    s.tokens,
        s.heads,     s.kv_heads,      s.head_dim,      width,        width,      out_width,
        width,       width,           scale,           dtype,        s.window,   documents};
    Tensor workspace(attention_backward_workspace_elems(args), DType::f32);
    args.workspace = workspace.data<float>();
    backward(context, args);
    // bf16: out is rounded before dout . out is taken, and the result is rounded: two roundings.
    const double tolerance = gradient_tolerance(dtype, s.head_dim + s.tokens, 2);
    const Doubles got = dqkv.doubles();
    CHECK(part_error(got, e.dqkv, width, 0, at_k) < tolerance);
    CHECK(part_error(got, e.dqkv, width, at_k, at_v) < tolerance);
    CHECK(part_error(got, e.dqkv, width, at_v, width) < tolerance);
    CHECK((out.guard_intact() && lse.guard_intact() && dqkv.guard_intact() && workspace.guard_intact()));
    if (label.substr(0, 5) != first_isa) first_isa = label.substr(0, 5), first_out = out, first_dqkv = dqkv;
    CHECK(out == first_out);  // bits do not depend on threads
    CHECK(dqkv == first_dqkv);
  };
  for_isas_and_threads<AttentionForward>(
      SLIP_EVERY_ISA(attention_forward_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
        const auto backward = function == isa_baseline::attention_forward_cpu ? isa_baseline::attention_backward_cpu
                              : function == isa_avx2::attention_forward_cpu   ? isa_avx2::attention_backward_cpu
                                                                              : isa_avx512::attention_backward_cpu;
        run(context, function, backward, label);
      });
}

}  // namespace

TEST_CASE("attention: the reference's gradients are its central differences", "[kernels]") {
  const int64_t tokens = 5, dim = 3;
  const Doubles packed = random_doubles(3 * tokens * dim, DType::f32, 7),
                dout = random_doubles(tokens * dim, DType::f32, 8);
  const Matrix d = head_of(dout, dim, 0, tokens, 0, dim);
  const auto part = [&](const Doubles& x, int64_t i) { return head_of(x, dim, i * tokens, tokens, 0, dim); };
  const auto loss = [&](const Doubles& x) {
    return reference::attention(part(x, 0), part(x, 1), part(x, 2), 0.7).out.cwiseProduct(d).sum();
  };
  const auto gradients = reference::attention_gradients(d, part(packed, 0), part(packed, 1), part(packed, 2), 0.7);
  Doubles analytic(packed.size());
  add_head(analytic, gradients.dq, dim, 0, 0);
  add_head(analytic, gradients.dk, dim, tokens, 0);
  add_head(analytic, gradients.dv, dim, 2 * tokens, 0);
  CHECK(error_of(central_differences(loss, packed), analytic) < 1e-6);
}

TEST_CASE("attention: every head_dim equals the whole matrix in double", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t head_dim : {8, 16, 20, 32, 64, 80, 128}) check({1, 37, 2, 2, head_dim}, dtype);
}

TEST_CASE("attention: every length around a block equals the whole matrix in double", "[kernels]") {
  for (int64_t tokens : {1, 2, 5, 6, 7, 15, 16, 17, 31, 61, 63, 64, 65, 127, 128, 129, 200})
    check({2, tokens, 2, 2, 16}, tokens % 2 ? DType::f32 : DType::bf16);
  for (int64_t tokens : {16, 64, 128}) check({2, tokens, 2, 2, 16}, DType::f32);
}

TEST_CASE("attention: heads share key-value heads, and dk and dv sum over them", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    check({2, 67, 6, 2, 20}, dtype);
    check({1, 70, 4, 1, 1}, dtype);
    check({3, 9, 3, 3, 7}, dtype);
  }
  check({1, 5, 1, 1, 256}, DType::f32);
}

TEST_CASE("attention: documents of a sequence are attention of their own", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t longest : {1, 2, 9, 63, 64, 65, 130}) check({2, 200, 2, 1, 16, 0, longest}, dtype);
    check({2, 33, 4, 2, 20, 7, 12}, dtype);     // a window within documents
    check({1, 70, 1, 1, 128, 0, 1000}, dtype);  // one
  }
}

TEST_CASE("attention: tokens see the last ones of a window", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    // Around the blocks of 64 and the vectors of a softmax.
    for (int64_t window : {1, 2, 5, 16, 63, 64, 65, 130}) check({1, 200, 2, 1, 16, window}, dtype);
    check({2, 33, 4, 2, 20, 32}, dtype);
    check({2, 33, 4, 2, 20, 33}, dtype);  // hides nothing
    check({1, 300, 1, 1, 128, 100}, dtype);
  }
  check({1, 260, 1, 1, 8, 70}, DType::f32, 6.0, 1.0f);
}

TEST_CASE("attention: scores far apart neither overflow nor lose the largest", "[kernels]") {
  check({1, 130, 1, 1, 8}, DType::f32, 6.0, 1.0f);  // scores up to several hundred
}

TEST_CASE("attention: NaN reaches the output", "[kernels]") {
  const Shape s = {1, 3, 1, 1, 4};
  Doubles qkv = random_doubles(s.tokens * 12, DType::f32, 3);
  qkv[12 + 4] = NAN;  // k of token 1
  Tensor x(qkv, DType::f32), out(12, DType::f32), lse(3, DType::f32);
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  attention_forward(context, {x.data(), x.data(4), x.data(8), out.data(), lse.data<float>(), 1, 3, 1, 1, 4, 12, 12, 4,
                              0.5f, DType::f32});
  CHECK(std::isnan(out.doubles()[4]));
  CHECK(std::isnan(lse.doubles()[2]));
  CHECK_FALSE(std::isnan(lse.doubles()[0]));
}

TEST_CASE("attention: impossible shapes are refused", "[kernels]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  AttentionForward args;
  args.batch = 1, args.tokens = 2, args.heads = 3, args.kv_heads = 2, args.head_dim = 4;
  args.q_stride = args.out_stride = 12, args.kv_stride = 8;
  CHECK_THROWS_WITH(attention_forward(context, args),
                    "[attention_forward] 3 heads cannot share 2 key-value heads: need a divisor of heads.");
  args.kv_heads = 1;
  CHECK_THROWS_AS(attention_forward(context, args), ShapeError);  // null operands
  args.dtype = DType::i32;
  CHECK_THROWS_WITH(attention_forward(context, args),
                    "[attention_forward] the element type is int32, need float32 or bfloat16.");
  args.dtype = DType::f32, args.head_dim = 257;
  CHECK_THROWS_AS(attention_forward(context, args), ShapeError);
  args.head_dim = 4, args.q_stride = 11;
  CHECK_THROWS_AS(attention_forward(context, args), ShapeError);
  args.q_stride = 12, args.tokens = 0;
  CHECK_NOTHROW(attention_forward(context, args));
  float dummy[64] = {};
  args.tokens = 2, args.q = args.k = args.v = dummy, args.out = args.lse = dummy;
  context.kind = DeviceKind::sim;
  CHECK_THROWS_AS(attention_forward(context, args), ResourceError);
}

TEST_CASE("attention: the cost equals the formula in its header", "[kernels]") {
  AttentionForward args;
  args.batch = 2, args.tokens = 3, args.heads = 4, args.kv_heads = 2, args.head_dim = 5;
  CHECK(attention_forward_cost(args).flops == 4 * 2 * 4 * 5 * 6);
  args.window = 2;  // three tokens see 1, 2 and 2
  CHECK(attention_forward_cost(args).flops == 4 * 2 * 4 * 5 * 5);
  args.window = 0;
  CHECK(attention_forward_cost(args).bytes == (2 * 4 + 2 * 2) * 2 * 3 * 5 * 4 + 4 * 2 * 4 * 3);
}
