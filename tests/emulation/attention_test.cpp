// SPDX-License-Identifier: Apache-2.0
// Attention on the emulated device against the whole matrix in double: the general path and the tensor cores.

#include "kernels/attention/attention.h"
#include "tests/emulation/on_device.h"
#include "tests/reference/packed_attention.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

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

/// `shift` elements before q, k and v exclude the tensor cores, which need rows aligned to 16 bytes.
void check(const Shape& s, DType dtype, double spread = 1.0, float scale = 0.0f, int64_t shift = 0) {
  const int64_t width = s.width(), out_width = s.out_width(), rows = s.batch * s.tokens;
  const uint32_t seed = static_cast<uint32_t>(s.tokens * 1000 + s.head_dim);
  CAPTURE(seed, name_of(dtype), s.batch, s.tokens, s.heads, s.kv_heads, s.head_dim, shift);
  const Doubles qkv = random_doubles(rows * width, dtype, seed, spread),
                dout = random_doubles(rows * out_width, dtype, seed + 1);
  if (scale == 0.0f) scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const std::vector<int32_t> begins = s.longest > 0 ? reference::document_begins(s, s.longest) : std::vector<int32_t>();
  const reference::PackedAttention e = s.longest > 0
                                           ? reference::packed_documents(s, qkv, dout, scale, s.window, begins)
                                           : reference::packed_attention(s, qkv, dout, scale, s.window);
  const int64_t at_k = s.heads * s.head_dim, at_v = at_k + s.kv_heads * s.head_dim;
  std::vector<uint8_t> first;
  for_orders([&](LaunchContext& context) {
    OnDevice x(qkv, dtype, "qkv", shift), d(dout, dtype, "dout"), out(rows * out_width, dtype, "out"),
        dqkv(rows * width, dtype, "dqkv");
    OnDevice lse(rows * s.heads, DType::f32, "lse");
    OnDevice begins_there(begins.empty() ? std::vector<int32_t>{0} : begins, "begins");
    const int32_t* const documents = begins.empty() ? nullptr : begins_there.data<int32_t>();
    attention_forward(context,
                      {x.data(), x.data(at_k), x.data(at_v), out.data(), lse.data<float>(), s.batch, s.tokens, s.heads,
                       s.kv_heads, s.head_dim, width, width, out_width, scale, dtype, s.window, documents});
    CHECK(error_of(out.doubles(), e.out) < forward_tolerance(dtype, s.head_dim + s.tokens, 2));
    CHECK(error_of(lse.doubles(), e.lse) < forward_tolerance(DType::f32, s.head_dim));
    AttentionBackward args = {
        d.data(),    x.data(),        x.data(at_k),    x.data(at_v), out.data(), lse.data<float>(),
        dqkv.data(), dqkv.data(at_k), dqkv.data(at_v), nullptr,      s.batch,    s.tokens,
        s.heads,     s.kv_heads,      s.head_dim,      width,        width,      out_width,
        width,       width,           scale,           dtype,        s.window,   documents};
    OnDevice workspace(attention_backward_workspace_elems(args), DType::f32, "workspace");
    args.workspace = workspace.data<float>();
    attention_backward(context, args);
    // bf16: weights and slopes are rounded before they are multiplied, out before dout . out, and the result.
    const double tolerance = gradient_tolerance(dtype, s.head_dim + s.tokens, 3);
    const Doubles got = dqkv.doubles();
    CHECK(part_error(got, e.dqkv, width, 0, at_k) < tolerance);
    CHECK(part_error(got, e.dqkv, width, at_k, at_v) < tolerance);
    CHECK(part_error(got, e.dqkv, width, at_v, width) < tolerance);
    CHECK((out.intact() && lse.intact() && dqkv.intact() && workspace.intact() && x.intact()));
    if (first.empty()) first = dqkv.bytes();
    CHECK(dqkv.bytes() == first);
  });
}

}  // namespace

TEST_CASE("attention, general path: every head size") {
  for (int64_t head_dim : {1, 5, 8, 20, 64, 80, 128, 130}) check({1, 37, 2, 1, head_dim}, DType::f32);
  for (int64_t head_dim : {7, 72, 131}) check({1, 35, 2, 2, head_dim}, DType::bf16);
  for (int64_t head_dim : {192, 256})
    for (DType dtype : {DType::f32, DType::bf16}) check({1, 17, 2, 1, head_dim}, dtype);
  check({1, 33, 1, 1, 64}, DType::bf16, 1.0, 0.0f, 1);
}

TEST_CASE("attention, general path: lengths around a tile, batches, shared heads") {
  for (int64_t tokens : {1, 31, 32, 33, 65}) check({2, tokens, 2, 2, 12}, DType::f32);
  check({2, 34, 6, 2, 20}, DType::f32);
  check({1, 40, 4, 1, 4}, DType::bf16);
  for (int64_t tokens : {1, 15, 16, 33}) check({2, tokens, 2, 2, 132}, DType::f32);  // tiles of 16
  check({2, 18, 4, 2, 136}, DType::bf16);
}

TEST_CASE("attention, general path: documents of a sequence are attention of their own") {
  for (int64_t longest : {1, 3, 31, 32, 33, 64}) check({2, 100, 2, 1, 12, 0, longest}, DType::f32);
  check({2, 66, 4, 2, 64, 0, 20}, DType::bf16, 1.0, 0.0f, 1);
  check({1, 50, 2, 1, 132, 9, 17}, DType::f32);  // a window within documents, tiles of 16
}

TEST_CASE("attention, general path: tokens see the last ones of a window") {
  for (int64_t window : {1, 3, 31, 32, 33, 64, 99}) check({1, 100, 2, 1, 12, window}, DType::f32);
  check({2, 66, 4, 2, 64, 20}, DType::bf16, 1.0, 0.0f, 1);
  check({1, 50, 2, 1, 132, 17}, DType::f32);  // tiles of 16
}

TEST_CASE("attention: scores far apart neither overflow nor lose the largest") {
  check({1, 70, 1, 1, 8}, DType::f32, 6.0, 1.0f);
}

TEST_CASE("attention: NaN reaches the rows that see it and no others") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const int64_t e = 64, tokens = 3;
    Doubles qkv = random_doubles(tokens * 3 * e, dtype, 3);
    qkv[static_cast<size_t>(3 * e + e)] = NAN;  // k of token 1
    OnDevice x(qkv, dtype, "qkv"), out(tokens * e, dtype, "out"), lse(tokens, DType::f32, "lse");
    LaunchContext context = cuda_context();
    attention_forward(context, {x.data(), x.data(e), x.data(2 * e), out.data(), lse.data<float>(), 1, tokens, 1, 1, e,
                                3 * e, 3 * e, e, 0.125f, dtype});
    CHECK(std::isnan(out.doubles()[static_cast<size_t>(e)]));
    CHECK(std::isnan(lse.doubles()[2]));
    CHECK_FALSE(std::isnan(lse.doubles()[0]));
    CHECK_FALSE(std::isnan(out.doubles()[0]));
  }
}

TEST_CASE("attention, tensor cores: lengths around a tile, batches, shared heads") {
  // Blocks have 128 rows, warps 32, and 64 or 32 rows of the other side pass at a time.
  for (int64_t tokens : {1, 15, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129}) check({1, tokens, 1, 1, 64}, DType::bf16);
  check({2, 66, 4, 2, 64}, DType::bf16);
  check({1, 130, 3, 1, 64}, DType::bf16);
  for (int64_t tokens : {33, 64, 70, 129}) check({1, tokens, 2, 1, 128}, DType::bf16);
}

TEST_CASE("attention, tensor cores: several steps through the keys") { check({1, 161, 1, 1, 64}, DType::bf16); }

TEST_CASE("attention, tensor cores: documents of a sequence are attention of their own") {
  for (int64_t longest : {1, 31, 32, 33, 64, 65, 130}) check({1, 161, 1, 1, 64, 0, longest}, DType::bf16);
  check({2, 66, 4, 2, 64, 0, 20}, DType::bf16);
  for (int64_t longest : {5, 33, 70}) check({1, 130, 2, 1, 128, 0, longest}, DType::bf16);
  check({2, 140, 2, 1, 64, 50, 90}, DType::bf16);  // a window within documents
}

TEST_CASE("attention, tensor cores: tokens see the last ones of a window") {
  for (int64_t window : {1, 31, 32, 33, 64, 65, 129, 160}) check({1, 161, 1, 1, 64, window}, DType::bf16);
  check({2, 66, 4, 2, 64, 20}, DType::bf16);
  for (int64_t window : {1, 33, 70}) check({1, 130, 2, 1, 128, window}, DType::bf16);
}

TEST_CASE("attention, tensor cores: no tile of another document is read") {
  // Documents of whole tiles. 0 times NaN is NaN, so a hidden weight of 0 would not be enough.
  for (int64_t head_dim : {64, 128}) {
    constexpr int64_t kDocument = 128, kTokens = 3 * kDocument;
    const int64_t width = 3 * head_dim;
    const Doubles qkv = random_doubles(kTokens * width, DType::bf16, 1),
                  dout = random_doubles(kTokens * head_dim, DType::bf16, 2);
    std::vector<int32_t> begins;
    for (int64_t t = 0; t < kTokens; ++t) begins.push_back(static_cast<int32_t>(t / kDocument * kDocument));
    const OnDevice begins_there(begins, "begins");
    const auto attend = [&](bool nan) {
      const auto with_nan = [&](Doubles values, int64_t of_token) {
        for (int64_t i = kDocument * of_token; nan && i < 2 * kDocument * of_token; ++i)
          values[static_cast<size_t>(i)] = NAN;
        return values;
      };
      const OnDevice x(with_nan(qkv, width), DType::bf16, "qkv"), d(with_nan(dout, head_dim), DType::bf16, "dout");
      OnDevice out(kTokens * head_dim, DType::bf16, "out"), lse(kTokens, DType::f32, "lse"),
          dqkv(kTokens * width, DType::bf16, "dqkv");
      LaunchContext context = cuda_context();
      attention_forward(
          context, {x.data(), x.data(head_dim), x.data(2 * head_dim), out.data(), lse.data<float>(), 1, kTokens, 1, 1,
                    head_dim, width, width, head_dim, 0.125f, DType::bf16, 0, begins_there.data<int32_t>()});
      AttentionBackward args = {d.data(),
                                x.data(),
                                x.data(head_dim),
                                x.data(2 * head_dim),
                                out.data(),
                                lse.data<float>(),
                                dqkv.data(),
                                dqkv.data(head_dim),
                                dqkv.data(2 * head_dim),
                                nullptr,
                                1,
                                kTokens,
                                1,
                                1,
                                head_dim,
                                width,
                                width,
                                head_dim,
                                width,
                                width,
                                0.125f,
                                DType::bf16,
                                0,
                                begins_there.data<int32_t>()};
      OnDevice workspace(attention_backward_workspace_elems(args), DType::f32, "workspace");
      args.workspace = workspace.data<float>();
      attention_backward(context, args);
      Doubles seen;  // by the first and the last document
      const auto take = [&](const Doubles& values, int64_t of_token) {
        for (int64_t i = 0; i < kTokens * of_token; ++i)
          if (i / of_token / kDocument != 1) seen.push_back(values[static_cast<size_t>(i)]);
      };
      take(out.doubles(), head_dim);
      take(lse.doubles(), 1);
      take(dqkv.doubles(), width);
      return seen;
    };
    CAPTURE(head_dim);
    CHECK(attend(true) == attend(false));
  }
}

TEST_CASE("attention, sm_90a: lengths around a block of queries and a tile of keys, heads of 64") {
  const emulation::Capability hopper(90);
  // Blocks have 192 queries, 64 for each warpgroup, and 128 keys pass at a time.
  for (int64_t tokens : {1, 15, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257})
    check({1, tokens, 1, 1, 64}, DType::bf16);
  check({2, 66, 4, 2, 64}, DType::bf16);
  check({1, 130, 3, 1, 64}, DType::bf16);
}

TEST_CASE("attention, sm_90a: lengths around a block of queries and a tile of keys, heads of 128") {
  const emulation::Capability hopper(90);
  for (int64_t tokens : {1, 64, 65, 127, 128, 129, 257}) check({1, tokens, 1, 1, 128}, DType::bf16);
  check({2, 70, 4, 2, 128}, DType::bf16);
}

TEST_CASE("attention, sm_90a: several rounds through all stages") {
  const emulation::Capability hopper(90);
  check({1, 650, 2, 1, 64}, DType::bf16);
  check({1, 300, 3, 3, 128}, DType::bf16);
}

TEST_CASE("attention, sm_90a: documents of a sequence are attention of their own") {
  const emulation::Capability hopper(90);
  // Documents of one token, and with edges at and around those of tiles of 64 and 128 rows.
  for (int64_t longest : {1, 5, 63, 64, 65, 128, 129}) check({1, 270, 1, 1, 64, 0, longest}, DType::bf16);
  for (int64_t longest : {1, 40, 128}) check({1, 200, 2, 1, 128, 0, longest}, DType::bf16);
  check({2, 90, 4, 2, 64, 0, 30}, DType::bf16);
  check({1, 700, 1, 1, 64, 0, 70}, DType::bf16);  // many documents, and blocks of keys that few queries see
}

TEST_CASE("attention, sm_90a: tokens see the last ones of a window") {
  const emulation::Capability hopper(90);
  for (int64_t window : {1, 63, 64, 65, 128, 129, 200}) check({1, 270, 1, 1, 64, window}, DType::bf16);
  for (int64_t window : {1, 100, 130}) check({1, 200, 2, 1, 128, window}, DType::bf16);
  check({2, 150, 4, 2, 64, 20}, DType::bf16);
  check({1, 400, 1, 1, 64, 200, 390}, DType::bf16);  // a window within documents; steps with both, one or no edge
}

TEST_CASE("attention, sm_90a: scores far apart neither overflow nor lose the largest") {
  const emulation::Capability hopper(90);
  check({1, 200, 1, 1, 64}, DType::bf16, 3.0, 1.0f);
}

TEST_CASE("attention, sm_90a: heads of 128 reuse every stage in short sequences") {
  const emulation::Capability hopper(90);
  check({1, 140, 3, 1, 128}, DType::bf16);
}

TEST_CASE("attention, sm_90a: dq is a sum over several blocks of keys, and heads of a group share dk and dv") {
  const emulation::Capability hopper(90);
  check({1, 330, 2, 1, 64}, DType::bf16);
  check({1, 260, 2, 1, 128}, DType::bf16);
}

TEST_CASE("attention, sm_90a: backward by 128 queries, lengths around a tile and several rounds through all stages") {
  const emulation::Capability hopper(90);
  const Queries128 queries;
  for (int64_t tokens : {1, 64, 65, 127, 128, 129, 193, 257}) check({1, tokens, 1, 1, 64}, DType::bf16);
  check({2, 130, 4, 2, 64}, DType::bf16);
  check({1, 650, 2, 1, 64}, DType::bf16);
  check({1, 200, 1, 1, 64}, DType::bf16, 3.0, 1.0f);
  check({1, 140, 1, 1, 128}, DType::bf16);  // heads of 128 stay as they are
}

TEST_CASE("attention, sm_90a: backward by 128 queries with documents and windows") {
  const emulation::Capability hopper(90);
  const Queries128 queries;
  for (int64_t longest : {1, 65, 129}) check({1, 270, 1, 1, 64, 0, longest}, DType::bf16);
  for (int64_t window : {1, 64, 129, 200}) check({1, 270, 1, 1, 64, window}, DType::bf16);
  check({2, 150, 4, 2, 64, 20}, DType::bf16);
  check({1, 400, 1, 1, 64, 200, 390}, DType::bf16);
}

TEST_CASE("attention, general path: rows that are no multiple of 16 bytes are read by element, with the same bits") {
  constexpr int64_t kTokens = 18;
  enum Odd { none, q, k, v, out, dout, q_stride, kv_stride, out_stride, only_head, all_odd };
  const auto attend = [&](int64_t head_dim, DType dtype, Odd odd) {
    const auto shift_of = [&](Odd operand) { return int64_t{odd == operand}; };
    // Rows of 8 elements are whole 16 bytes in both types, and heads of 18 elements are not.
    const auto stride_of = [&](Odd operand) {
      return odd == only_head ? (head_dim + 7) / 8 * 8 : head_dim + int64_t{odd == operand};
    };
    const auto rows_of = [&](uint32_t seed, int64_t stride, Odd operand) {
      const Doubles values = random_doubles(kTokens * head_dim, dtype, seed);
      Doubles rows(static_cast<size_t>(kTokens * stride));
      for (int64_t i = 0; i < kTokens * head_dim; ++i)
        rows[static_cast<size_t>(i / head_dim * stride + i % head_dim)] = values[static_cast<size_t>(i)];
      return OnDevice(rows, dtype, "operand", shift_of(operand));
    };
    const int64_t of_q = stride_of(q_stride), of_kv = stride_of(kv_stride), of_out = stride_of(out_stride);
    const OnDevice on_q = rows_of(1, of_q, q), on_k = rows_of(2, of_kv, k), on_v = rows_of(3, of_kv, v),
                   on_dout = rows_of(4, of_out, dout);
    OnDevice on_out(kTokens * of_out, dtype, "out", shift_of(out)), lse(kTokens, DType::f32, "lse"),
        dq(kTokens * head_dim, dtype, "dq"), dk(kTokens * head_dim, dtype, "dk"), dv(kTokens * head_dim, dtype, "dv");
    LaunchContext context = cuda_context();
    attention_forward(context, {on_q.data(), on_k.data(), on_v.data(), on_out.data(), lse.data<float>(), 1, kTokens, 1,
                                1, head_dim, of_q, of_kv, of_out, 0.25f, dtype});
    AttentionBackward args = {on_dout.data(),
                              on_q.data(),
                              on_k.data(),
                              on_v.data(),
                              on_out.data(),
                              lse.data<float>(),
                              dq.data(),
                              dk.data(),
                              dv.data(),
                              nullptr,
                              1,
                              kTokens,
                              1,
                              1,
                              head_dim,
                              of_q,
                              of_kv,
                              of_out,
                              head_dim,
                              head_dim,
                              0.25f,
                              dtype};
    OnDevice workspace(attention_backward_workspace_elems(args), DType::f32, "workspace");
    args.workspace = workspace.data<float>();
    attention_backward(context, args);
    CHECK((on_out.intact() && dq.intact() && dk.intact() && dv.intact()));
    Doubles all = lse.doubles();
    for (const OnDevice* gradient : {&dq, &dk, &dv})
      for (double value : gradient->doubles()) all.push_back(value);
    const Doubles rows = on_out.doubles();
    for (int64_t i = 0; i < kTokens * head_dim; ++i)
      all.push_back(rows[static_cast<size_t>(i / head_dim * of_out + i % head_dim)]);
    return all;
  };
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t head_dim : {8, 18, 136}) {
      const Doubles expected = attend(head_dim, dtype, none);
      for (int odd = q; odd < all_odd; ++odd) {
        CAPTURE(name_of(dtype), head_dim, odd);
        CHECK(attend(head_dim, dtype, static_cast<Odd>(odd)) == expected);
      }
    }
}
