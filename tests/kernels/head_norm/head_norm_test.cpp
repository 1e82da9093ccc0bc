// SPDX-License-Identifier: Apache-2.0
// Norms of heads against double.

#include "tests/reference/head_norm.h"

#include "engine/base/check.h"
#include "kernels/head_norm/head_norm.h"
#include "tests/kernels/common/op_test.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr float kEps = 1e-5f;

void check(const reference::HeadNormShape& s, DType dtype, bool accumulate) {
  INFO(fmt::format("{} R{} H{}/{} E{} accumulate {}", name_of(dtype), s.rows, s.heads, s.kv_heads, s.head_dim,
                   accumulate));
  const auto seed = static_cast<uint32_t>(s.rows * 1000 + s.head_dim);
  const Doubles x = random_doubles(s.elems(), dtype, seed), dy = random_doubles(s.elems(), dtype, seed + 1),
                q_weight = random_doubles(s.head_dim, dtype, seed + 2),
                k_weight = random_doubles(s.head_dim, dtype, seed + 3),
                before = random_doubles(s.head_dim, DType::f32, seed + 4);
  auto expected = reference::head_norm(s, x, dy, q_weight, k_weight, kEps);
  for (size_t i = 0; i < before.size() && accumulate; ++i)
    expected.dq_weight[i] += before[i], expected.dk_weight[i] += before[i];
  Tensor from(x, dtype), qw(q_weight, dtype), kw(k_weight, dtype);
  for_isas_and_threads<HeadNormForward>(
      SLIP_EVERY_ISA(head_norm_forward_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
        INFO(label);
        Tensor y(s.elems(), dtype), inv(s.rows * s.normed(), DType::f32);
        function(context, {from.data(), qw.data(), kw.data(), y.data(), inv.data<float>(), s.rows, s.heads, s.kv_heads,
                           s.head_dim, kEps, dtype});
        // Catches one weight for both, values that are normed, and a mean over the row.
        CHECK(error_of(y.doubles(), expected.y) < forward_tolerance(dtype, s.head_dim, 2));
        CHECK(error_of(inv.doubles(), expected.inv_rms) < forward_tolerance(DType::f32, s.head_dim));
        CHECK((y.guard_intact() && inv.guard_intact()));
      });
  Tensor first(0, DType::f32);
  std::string first_isa;
  for_isas_and_threads<HeadNormBackward>(
      SLIP_EVERY_ISA(head_norm_backward_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
        INFO(label);
        Tensor d(dy, dtype), inv(expected.inv_rms, DType::f32), dq(before, DType::f32), dk(before, DType::f32),
            workspace(head_norm_backward_workspace_elems(s.rows, s.head_dim), DType::f32);
        function(context,
                 {d.data(), from.data(), qw.data(), kw.data(), inv.data<float>(), dq.data<float>(), dk.data<float>(),
                  workspace.data<float>(), s.rows, s.heads, s.kv_heads, s.head_dim, dtype, accumulate});
        // Below size 3 the terms of d nearly cancel, so the error is taken against them as well.
        Doubles got = d.doubles(), wanted = expected.d;
        got.insert(got.end(), expected.terms.begin(), expected.terms.end());
        wanted.insert(wanted.end(), expected.terms.begin(), expected.terms.end());
        CHECK(error_of(got, wanted) < gradient_tolerance(dtype, s.head_dim));
        CHECK(error_of(dq.doubles(), expected.dq_weight) < gradient_tolerance(DType::f32, s.rows * s.heads));
        CHECK(error_of(dk.doubles(), expected.dk_weight) < gradient_tolerance(DType::f32, s.rows * s.kv_heads));
        CHECK((d.guard_intact() && dq.guard_intact() && dk.guard_intact() && workspace.guard_intact()));
        if (label.substr(0, 5) != first_isa) first_isa = label.substr(0, 5), first = dq;
        CHECK(dq == first);  // bits do not depend on threads
      });
}

}  // namespace

TEST_CASE("head norm: equals the reference, bits the same on any number of threads", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t head_dim : {1, 2, 6, 8, 15, 16, 17, 64, 128, 256})
      check({3, 4, 2, head_dim}, dtype, head_dim % 3 == 0);
    for (int64_t rows : {1, 16, 17, 1025}) check({rows, 3, 1, 10}, dtype, rows > 16);
    check({5, 2, 2, 12}, dtype, true);
  }
}

TEST_CASE("head norm: no rows give no gradient", "[kernels]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  float weight[2] = {1, 1}, dq[2] = {5, 5}, dk[2] = {5, 5};
  HeadNormBackward args;
  args.q_weight = args.k_weight = weight, args.dq_weight = dq, args.dk_weight = dk;
  args.heads = args.kv_heads = 1, args.head_dim = 2;
  head_norm_backward(context, args);
  CHECK((dq[1] == 0 && dk[1] == 0));
}

TEST_CASE("head norm: impossible operands are refused, costs equal the formula in the header", "[kernels]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  HeadNormForward args;
  args.rows = 2, args.heads = 3;
  CHECK_THROWS_WITH(head_norm_forward(context, args), "[head_norm_forward] kv_heads is 0, need at least 1.");
  args.kv_heads = 1, args.head_dim = 257;
  CHECK_THROWS_WITH(head_norm_forward(context, args),
                    "[head_norm_forward] head_dim is 257, need at most 256. Use more heads.");
  args.head_dim = 8;
  CHECK_THROWS_AS(head_norm_forward(context, args), ShapeError);
  CHECK(head_norm_forward_cost(args).flops == 4 * 2 * 4 * 8);
  CHECK(head_norm_forward_cost(args).bytes == (2 * 2 * 5 * 8 + 2 * 8) * 4 + 4 * 2 * 4);
  HeadNormBackward backward;
  backward.rows = 2, backward.heads = 3, backward.kv_heads = 1, backward.head_dim = 8, backward.accumulate = true;
  CHECK(head_norm_backward_cost(backward).flops == 11 * 2 * 4 * 8);
  CHECK(head_norm_backward_cost(backward).bytes == (3 * 2 * 4 * 8 + 2 * 8) * 4 + 2 * 8 * 8 + 4 * 2 * 4);
  CHECK_THROWS_AS(head_norm_backward(context, backward), ShapeError);
}
