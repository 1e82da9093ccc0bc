// SPDX-License-Identifier: Apache-2.0
// Layer norm, RMS norm and norms of heads against double.

#include "tests/reference/norms.h"
#include "engine/base/check.h"
#include "kernels/head_norm/head_norm.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "tests/kernels/common/backend.h"
#include "tests/reference/head_norm.h"
#include "tests/sample.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr float kEps = 1e-5f;

void check_forward(int64_t rows, int64_t width, DType dtype, bool with_delta, bool centre) {
  CAPTURE(rows, width, name_of(dtype), with_delta, centre);
  const uint32_t seed = static_cast<uint32_t>(rows * 1000 + width);
  const Doubles x = random_doubles(rows * width, dtype, seed), delta = random_doubles(rows * width, dtype, seed + 1);
  const Doubles weight = random_doubles(width, dtype, seed + 2), bias = random_doubles(width, dtype, seed + 3);
  Doubles total = x;
  for (size_t i = 0; i < x.size() && with_delta; ++i) total[i] += delta[i];
  total = Tensor(total, dtype).doubles();
  const auto expected = reference::norm(total, weight, bias, kEps, centre);
  for (bool in_place : {false, true}) {
    if (in_place ? !with_delta : with_delta && !on_cpu()) continue;
    for_machines([&](LaunchContext& context) {
      OnDevice from(x, dtype, "x"), d(delta, dtype, "delta"), w(weight, dtype, "weight"), b(bias, dtype, "bias"),
          apart(rows * width, dtype, "sum"), y(rows * width, dtype, "y");
      OnDevice mean(rows, DType::f32, "mean"), inv(rows, DType::f32, "inv");
      const OnDevice& to = in_place ? from : apart;
      const void* added = with_delta ? d.data() : nullptr;
      void* sum = with_delta ? to.data() : nullptr;
      if (centre)
        layer_norm_forward(context, {from.data(), added, sum, w.data(), b.data(), y.data(), mean.data<float>(),
                                     inv.data<float>(), rows, width, kEps, dtype});
      else
        rms_norm_forward(context,
                         {from.data(), added, sum, w.data(), y.data(), inv.data<float>(), rows, width, kEps, dtype});
      if (with_delta) CHECK(to.doubles() == total);
      // Detects a missing eps (width 1: infinite), a missing weight or bias, width - 1 in the variance at every width
      // here. RMS norm rounds bf16 before the weight and after.
      CHECK(error_of(y.doubles(), expected.y) < forward_tolerance(dtype, width, centre ? 1 : 2));
      if (centre) CHECK(error_of(mean.doubles(), expected.mean) < forward_tolerance(DType::f32, width));
      CHECK(error_of(inv.doubles(), expected.inv) < forward_tolerance(DType::f32, width));
      CHECK((y.intact() && from.intact() && apart.intact() && mean.intact() && inv.intact()));
    });
  }
}

/// Of a layer norm with the sums of dx, if `sums`.
void check_backward(int64_t rows, int64_t width, DType dtype, bool with_residual, bool accumulate, bool centre,
                    bool sums = false) {
  CAPTURE(rows, width, name_of(dtype), with_residual, accumulate, centre, sums);
  const uint32_t seed = static_cast<uint32_t>(rows * 1000 + width);
  const Doubles x = random_doubles(rows * width, dtype, seed), dy = random_doubles(rows * width, dtype, seed + 1);
  const Doubles weight = random_doubles(width, dtype, seed + 2), more = random_doubles(rows * width, dtype, seed + 3);
  const auto forward = reference::norm(x, weight, Doubles(weight.size()), kEps, centre);
  auto expected = reference::norm_gradients(dy, x, weight, kEps, centre);
  const Doubles before = random_doubles(width, DType::f32, seed + 4);
  for (size_t i = 0; i < x.size() && with_residual; ++i) expected.dx[i] += more[i];
  for (size_t i = 0; i < before.size() && accumulate; ++i)
    expected.dweight[i] += before[i], expected.dbias[i] += before[i];
  Doubles expected_sums = accumulate ? before : Doubles(before.size());
  for (size_t i = 0; i < x.size(); ++i) expected_sums[i % before.size()] += expected.dx[i];
  SameBits same_weight, same_bias, same_sums;
  for_machines([&](LaunchContext& context) {
    OnDevice d(dy, dtype, "dy"), from(x, dtype, "x"), w(weight, dtype, "weight"),
        mean(forward.mean, DType::f32, "mean");
    OnDevice inv(forward.inv, DType::f32, "inv"), r(more, dtype, "residual"), dw(before, DType::f32, "dweight"),
        db(before, DType::f32, "dbias"), of_dx(before, DType::f32, "dx_sums");
    const int64_t floats =
        centre ? layer_norm_backward_workspace_elems(rows, width) : rms_norm_backward_workspace_elems(rows, width);
    OnDevice workspace(floats, DType::f32, "workspace");
    const void* residual = with_residual ? r.data() : nullptr;
    // On a GPU in place over dy, whose changed values the sums over rows must not use; on the CPU over the residual.
    const OnDevice& dx = on_cpu() ? r : d;
    if (centre)
      layer_norm_backward(context, {d.data(), from.data(), w.data(), mean.data<float>(), inv.data<float>(), residual,
                                    dx.data(), dw.data<float>(), db.data<float>(), workspace.data<float>(), rows, width,
                                    dtype, accumulate, sums ? of_dx.data<float>() : nullptr});
    else
      rms_norm_backward(context, {d.data(), from.data(), w.data(), inv.data<float>(), residual, dx.data(),
                                  dw.data<float>(), workspace.data<float>(), rows, width, dtype, accumulate});
    // Catches a lost mean(g) or mean(g n), a lost residual and rows past a block. Below width 3 the terms of dx nearly
    // cancel, so the error is taken against inv * dy * weight as well.
    Doubles got = dx.doubles(), wanted = expected.dx;
    for (size_t i = 0; i < dy.size(); ++i) {
      const double term = forward.inv[i / weight.size()] * dy[i] * weight[i % weight.size()];
      got.push_back(term), wanted.push_back(term);
    }
    CHECK(error_of(got, wanted) < gradient_tolerance(dtype, width));
    CHECK(error_of(dw.doubles(), expected.dweight) < gradient_tolerance(DType::f32, rows));
    if (centre) CHECK(error_of(db.doubles(), expected.dbias) < gradient_tolerance(DType::f32, rows));
    if (sums) {
      // As for dx: below width 3 the terms nearly cancel.
      Doubles got_sums = of_dx.doubles(), wanted_sums = expected_sums;
      got_sums.insert(got_sums.end(), got.begin() + static_cast<int64_t>(dy.size()), got.end());
      wanted_sums.insert(wanted_sums.end(), wanted.begin() + static_cast<int64_t>(dy.size()), wanted.end());
      CHECK(error_of(got_sums, wanted_sums) < gradient_tolerance(DType::f32, rows * width));
    } else {
      CHECK(of_dx.doubles() == before);
    }
    CHECK((d.intact() && r.intact() && dw.intact() && db.intact() && of_dx.intact() && workspace.intact()));
    CHECK((same_weight(dw) && same_bias(db) && same_sums(of_dx)));
  });
}

void check_heads(const reference::HeadNormShape& s, DType dtype, bool accumulate) {
  CAPTURE(s.rows, s.heads, s.kv_heads, s.head_dim, name_of(dtype), accumulate);
  const auto seed = static_cast<uint32_t>(s.rows * 1000 + s.head_dim);
  const Doubles x = random_doubles(s.elems(), dtype, seed), dy = random_doubles(s.elems(), dtype, seed + 1),
                q_weight = random_doubles(s.head_dim, dtype, seed + 2),
                k_weight = random_doubles(s.head_dim, dtype, seed + 3),
                before = random_doubles(s.head_dim, DType::f32, seed + 4);
  auto expected = reference::head_norm(s, x, dy, q_weight, k_weight, kEps);
  for (size_t i = 0; i < before.size() && accumulate; ++i)
    expected.dq_weight[i] += before[i], expected.dk_weight[i] += before[i];
  SameBits same;
  for_machines([&](LaunchContext& context) {
    OnDevice from(x, dtype, "x"), qw(q_weight, dtype, "q_weight"), kw(k_weight, dtype, "k_weight"),
        y(s.elems(), dtype, "y"), inv(s.rows * s.normed(), DType::f32, "inv_rms"), d(dy, dtype, "d"),
        dq(before, DType::f32, "dq_weight"), dk(before, DType::f32, "dk_weight"),
        workspace(head_norm_backward_workspace_elems(s.rows, s.head_dim), DType::f32, "workspace");
    head_norm_forward(context, {from.data(), qw.data(), kw.data(), y.data(), inv.data<float>(), s.rows, s.heads,
                                s.kv_heads, s.head_dim, kEps, dtype});
    // Catches one weight for both, values that are normed, and a mean over the row.
    CHECK(error_of(y.doubles(), expected.y) < forward_tolerance(dtype, s.head_dim, 2));
    CHECK(error_of(inv.doubles(), expected.inv_rms) < forward_tolerance(DType::f32, s.head_dim));
    head_norm_backward(
        context, {d.data(), from.data(), qw.data(), kw.data(), inv.data<float>(), dq.data<float>(), dk.data<float>(),
                  workspace.data<float>(), s.rows, s.heads, s.kv_heads, s.head_dim, dtype, accumulate});
    Doubles got = d.doubles(), wanted = expected.d;  // as in check_backward
    got.insert(got.end(), expected.terms.begin(), expected.terms.end());
    wanted.insert(wanted.end(), expected.terms.begin(), expected.terms.end());
    CHECK(error_of(got, wanted) < gradient_tolerance(dtype, s.head_dim));
    CHECK(error_of(dq.doubles(), expected.dq_weight) < gradient_tolerance(DType::f32, s.rows * s.heads));
    CHECK(error_of(dk.doubles(), expected.dk_weight) < gradient_tolerance(DType::f32, s.rows * s.kv_heads));
    CHECK((y.intact() && inv.intact() && d.intact() && dq.intact() && dk.intact() && workspace.intact()));
    CHECK(same(dq));
  });
}

}  // namespace

TEST_CASE("norms: the gradients of the reference are its central differences", "[.][cpu]") {
  const Doubles x = random_doubles(12, DType::f32, 1), dy = random_doubles(12, DType::f32, 2),
                w = random_doubles(4, DType::f32, 3), b = random_doubles(4, DType::f32, 4);
  for (bool centre : {true, false}) {
    const auto gradients = reference::norm_gradients(dy, x, w, 1e-2, centre);
    const auto loss = [&](const Doubles& xs, const Doubles& ws, const Doubles& bs) {
      return dot(dy, reference::norm(xs, ws, bs, 1e-2, centre).y);
    };
    const auto slopes = [](const auto& function, const Doubles& at) { return central_differences(function, at); };
    CHECK(error_of(slopes([&](const Doubles& v) { return loss(v, w, b); }, x), gradients.dx) < 1e-6);
    CHECK(error_of(slopes([&](const Doubles& v) { return loss(x, v, b); }, w), gradients.dweight) < 1e-6);
    if (centre) CHECK(error_of(slopes([&](const Doubles& v) { return loss(x, w, v); }, b), gradients.dbias) < 1e-6);
  }
}

TEST_CASE("norms: heads on the CPU equal double, bits the same on any number of threads", "[.][cpu]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t head_dim : {1, 2, 6, 8, 15, 16, 17, 64, 128, 256})
      check_heads({3, 4, 2, head_dim}, dtype, head_dim % 3 == 0);
    for (int64_t rows : {1, 16, 17, 1025}) check_heads({rows, 3, 1, 10}, dtype, rows > 16);
    check_heads({5, 2, 2, 12}, dtype, true);
  }
}

TEST_CASE("norms: the CPU's forward equals double, with and without delta", "[.][cpu]") {
  for (bool centre : {true, false})
    for (DType dtype : {DType::f32, DType::bf16})
      for (int64_t width : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 128, 131})
        for (int64_t rows : {1, 5})
          for (bool with_delta : {false, true}) check_forward(rows, width, dtype, with_delta, centre);
}

TEST_CASE("norms: the CPU's backward equals double, bits the same on any number of threads", "[.][cpu]") {
  for (bool centre : {true, false})
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (int64_t width : {1, 2, 7, 8, 9, 16, 17, 33, 131})
        for (bool residual : {false, true}) check_backward(3, width, dtype, residual, residual, centre);
      for (int64_t rows : {1, 4, 15, 16, 17, 33, 1023, 1025})
        check_backward(rows, 19, dtype, rows % 2 == 0, rows % 3 == 0, centre);
    }
}

TEST_CASE("norms: heads equal double, bits the same in any order", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t head_dim : {1, 6, 32, 33, 64, 128, 256}) check_heads({3, 4, 2, head_dim}, dtype, head_dim % 2 == 0);
    for (int64_t rows : {1, 31, 33, 130}) check_heads({rows, 3, 1, 10}, dtype, rows > 31);
    check_heads({2, 11, 11, 12}, dtype, false);
  }
}

TEST_CASE("norms: forward equals double, with and without delta", "[cuda]") {
  for (bool centre : {true, false})
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (int64_t width : {1, 2, 7, 8, 9, 32, 255, 256, 257, 520})
        for (bool with_delta : {false, true}) check_forward(5, width, dtype, with_delta, centre);
      check_forward(1, 24, dtype, true, centre);
      // Registers of one warp hold 512 floats or 1024 bfloat16; then two, four and eight warps share a row, then none.
      for (int64_t width : {512, 513, 1024, 1026, 1028, 1032, 2049, 2056, 4096, 4104, 8192, 8193})
        check_forward(3, width, dtype, width % 3 == 0, centre);
    }
}

TEST_CASE("norms: backward equals double, bits the same in any order", "[cuda]") {
  for (bool centre : {true, false})
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (int64_t width : {1, 7, 8, 31, 33, 264})
        for (bool residual : {false, true}) check_backward(3, width, dtype, residual, residual, centre);
      for (int64_t rows : {1, 15, 16, 17, 33, 1025})
        check_backward(rows, 19, dtype, rows % 2 == 0, rows % 3 == 0, centre);
      for (int64_t width : {512, 513, 1024, 1026, 1032, 2056, 4096, 4104, 8192})
        check_backward(5, width, dtype, width % 3 == 0, width % 3 == 1, centre);
      // A sample has every width in one type of each norm.
      if (!test_everything() && centre == (dtype == DType::f32)) continue;
      // Three packs in a lane or four, of rows that one, two, four and eight warps share.
      for (int64_t width : {384, 388, 768, 776, 1536, 1544, 3072, 3080, 6144, 6152})
        check_backward(9, width, dtype, width % 3 == 0, false, centre);
      check_backward(131, 1032, dtype, true, false, centre);  // several blocks of rows that warps share
      check_backward(301, 768, dtype, true, true, centre);    // and of rows of one warp, some groups with a row less
      // Wider than registers hold: sums with room for a few warps of a block, for one, for none.
      check_backward(35, 8200, dtype, true, true, centre);
      check_backward(67, 9000, dtype, true, false, centre);
      check_backward(35, 24600, dtype, false, true, centre);
    }
}

TEST_CASE("norms: a layer norm's sums of dx equal double, bits the same in any order", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t width : {1, 7, 8, 31, 264})
      for (bool residual : {false, true}) check_backward(3, width, dtype, residual, residual, true, true);
    for (int64_t rows : {1, 17, 1025}) check_backward(rows, 24, dtype, rows % 2 == 0, rows > 1, true, true);
    for (int64_t width : {384, 388, 512, 768, 776, 1536, 1544, 3072, 3080, 4096, 6144, 6152, 8192})
      check_backward(9, width, dtype, width % 3 == 0, width % 16 == 0, true, true);
    check_backward(131, 1032, dtype, true, false, true, true);
    check_backward(301, 768, dtype, true, true, true, true);
    if (!test_everything() && dtype == DType::bf16) continue;
    for (int64_t width : {8200, 9000, 24600}) check_backward(35, width, dtype, true, true, true, true);
  }
}

TEST_CASE("norms: no rows give no gradient") {
  LaunchContext context = a_context();
  const OnDevice weight(Doubles{1, 1, 1}, DType::f32, "weight");
  const Doubles before{5, 5, 5}, none(3);
  OnDevice dweight(before, DType::f32, "dweight"), dbias(before, DType::f32, "dbias"),
      sums(before, DType::f32, "dx_sums");
  LayerNormBackward args;
  args.weight = weight.data(), args.dweight = dweight.data<float>(), args.dbias = dbias.data<float>(), args.width = 3;
  args.dx_sums = sums.data<float>();
  layer_norm_backward(context, args);
  CHECK((dweight.doubles() == none && dbias.doubles() == none && sums.doubles() == none));
  dweight.set(before);
  RmsNormBackward rms;
  rms.weight = weight.data(), rms.dweight = dweight.data<float>(), rms.width = 3;
  rms_norm_backward(context, rms);
  CHECK(dweight.doubles() == none);
  dweight.set(before), dbias.set(before);
  HeadNormBackward heads;
  heads.q_weight = heads.k_weight = weight.data();
  heads.dq_weight = dweight.data<float>(), heads.dk_weight = dbias.data<float>();
  heads.heads = heads.kv_heads = 1, heads.head_dim = 3;
  head_norm_backward(context, heads);
  CHECK((dweight.doubles() == none && dbias.doubles() == none));
}

TEST_CASE("layer norm: the sums of dx have the bits of a bias gradient of dx", "[.][cpu]") {
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

TEST_CASE("layer norm: impossible operands are refused, costs equal the formula in the header", "[.][cpu]") {
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

TEST_CASE("RMS norm: impossible operands are refused, costs equal the formula in the header", "[.][cpu]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  RmsNormForward args;
  args.rows = 2;
  CHECK_THROWS_WITH(rms_norm_forward(context, args), "[rms_norm_forward] width is 0, need at least 1.");
  args.width = 3;
  CHECK(rms_norm_forward_cost(args).flops == 4 * 6);
  CHECK(rms_norm_forward_cost(args).bytes == (2 * 6 + 3) * 4 + 4 * 2);
  float delta = 0;
  args.delta = &delta;
  CHECK_THROWS_WITH(rms_norm_forward(context, args),
                    "[rms_norm_forward] delta is set and sum is null. Pass memory for x + delta in sum.");
  RmsNormBackward backward;
  backward.rows = 2, backward.width = 3, backward.accumulate = true;
  CHECK(rms_norm_backward_cost(backward).bytes == (3 * 6 + 3) * 4 + 2 * 4 * 3 + 4 * 2);
  CHECK_THROWS_AS(rms_norm_backward(context, backward), ShapeError);
}

TEST_CASE("head norm: impossible operands are refused, costs equal the formula in the header", "[.][cpu]") {
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
