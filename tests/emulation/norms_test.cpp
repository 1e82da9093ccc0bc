// SPDX-License-Identifier: Apache-2.0
// Layer norm, RMS norm and norms of heads on the emulated device against double.

#include "kernels/head_norm/head_norm.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "tests/emulation/on_device.h"
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
  for_orders([&](LaunchContext& context) {
    OnDevice from(x, dtype, "x"), d(delta, dtype, "delta"), w(weight, dtype, "weight"), b(bias, dtype, "bias"),
        y(rows * width, dtype, "y");
    OnDevice mean(rows, DType::f32, "mean"), inv(rows, DType::f32, "inv");
    const void* added = with_delta ? d.data() : nullptr;
    void* sum = with_delta ? from.data() : nullptr;  // in place
    if (centre)
      layer_norm_forward(context, {from.data(), added, sum, w.data(), b.data(), y.data(), mean.data<float>(),
                                   inv.data<float>(), rows, width, kEps, dtype});
    else
      rms_norm_forward(context,
                       {from.data(), added, sum, w.data(), y.data(), inv.data<float>(), rows, width, kEps, dtype});
    if (with_delta) CHECK(from.doubles() == total);
    CHECK(error_of(y.doubles(), expected.y) < forward_tolerance(dtype, width, centre ? 1 : 2));
    if (centre) CHECK(error_of(mean.doubles(), expected.mean) < forward_tolerance(DType::f32, width));
    CHECK(error_of(inv.doubles(), expected.inv) < forward_tolerance(DType::f32, width));
    CHECK((y.intact() && from.intact() && mean.intact() && inv.intact()));
  });
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
  std::vector<uint8_t> first, first_sums;
  for_orders([&](LaunchContext& context) {
    OnDevice d(dy, dtype, "dy"), from(x, dtype, "x"), w(weight, dtype, "weight"),
        mean(forward.mean, DType::f32, "mean");
    OnDevice inv(forward.inv, DType::f32, "inv"), r(more, dtype, "residual"), dw(before, DType::f32, "dweight"),
        db(before, DType::f32, "dbias"), of_dx(before, DType::f32, "dx_sums");
    const int64_t floats =
        centre ? layer_norm_backward_workspace_elems(rows, width) : rms_norm_backward_workspace_elems(rows, width);
    OnDevice workspace(floats, DType::f32, "workspace");
    const void* residual = with_residual ? r.data() : nullptr;
    // In place over dy: the sums over rows must not use changed values.
    if (centre)
      layer_norm_backward(context, {d.data(), from.data(), w.data(), mean.data<float>(), inv.data<float>(), residual,
                                    d.data(), dw.data<float>(), db.data<float>(), workspace.data<float>(), rows, width,
                                    dtype, accumulate, sums ? of_dx.data<float>() : nullptr});
    else
      rms_norm_backward(context, {d.data(), from.data(), w.data(), inv.data<float>(), residual, d.data(),
                                  dw.data<float>(), workspace.data<float>(), rows, width, dtype, accumulate});
    // Below width 3 the terms of dx nearly cancel, so the error is taken against inv * dy * weight as well.
    Doubles got = d.doubles(), wanted = expected.dx;
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
    CHECK((d.intact() && dw.intact() && db.intact() && of_dx.intact() && workspace.intact()));
    if (first.empty()) first = dw.bytes(), first_sums = of_dx.bytes();
    CHECK((dw.bytes() == first && of_dx.bytes() == first_sums));
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
  std::vector<uint8_t> first;
  for_orders([&](LaunchContext& context) {
    OnDevice from(x, dtype, "x"), qw(q_weight, dtype, "q_weight"), kw(k_weight, dtype, "k_weight"),
        y(s.elems(), dtype, "y"), inv(s.rows * s.normed(), DType::f32, "inv_rms"), d(dy, dtype, "d"),
        dq(before, DType::f32, "dq_weight"), dk(before, DType::f32, "dk_weight"),
        workspace(head_norm_backward_workspace_elems(s.rows, s.head_dim), DType::f32, "workspace");
    head_norm_forward(context, {from.data(), qw.data(), kw.data(), y.data(), inv.data<float>(), s.rows, s.heads,
                                s.kv_heads, s.head_dim, kEps, dtype});
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
    if (first.empty()) first = dq.bytes();
    CHECK(dq.bytes() == first);
  });
}

}  // namespace

TEST_CASE("norms: heads equal double, bits the same in any order") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t head_dim : {1, 6, 32, 33, 64, 128, 256}) check_heads({3, 4, 2, head_dim}, dtype, head_dim % 2 == 0);
    for (int64_t rows : {1, 31, 33, 130}) check_heads({rows, 3, 1, 10}, dtype, rows > 31);
    check_heads({2, 11, 11, 12}, dtype, false);
  }
}

TEST_CASE("norms: forward equals double, with and without delta") {
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

TEST_CASE("norms: backward equals double, bits the same in any order") {
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

TEST_CASE("norms: a layer norm's sums of dx equal double, bits the same in any order") {
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
  LaunchContext context = cuda_context();
  OnDevice weight(Doubles{1, 1, 1}, DType::f32, "weight"), dweight(Doubles{5, 5, 5}, DType::f32, "dweight"),
      dbias(Doubles{5, 5, 5}, DType::f32, "dbias");
  LayerNormBackward args;
  args.weight = weight.data(), args.dweight = dweight.data<float>(), args.dbias = dbias.data<float>(), args.width = 3;
  OnDevice sums(Doubles{5, 5, 5}, DType::f32, "dx_sums");
  args.dx_sums = sums.data<float>();
  layer_norm_backward(context, args);
  CHECK((dweight.doubles() == Doubles(3) && dbias.doubles() == Doubles(3) && sums.doubles() == Doubles(3)));
}
