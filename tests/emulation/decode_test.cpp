// SPDX-License-Identifier: Apache-2.0
// The ops of text generation on the emulated device against double.

#include "kernels/decode/decode.h"

#include "engine/base/check.h"
#include "tests/emulation/on_device.h"
#include "tests/reference/decode.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

void check_product(int64_t rows, int64_t in, int64_t out, DType dtype, bool with_bias, int64_t shift = 0) {
  CAPTURE(rows, in, out, name_of(dtype), with_bias, shift);
  const auto seed = static_cast<uint32_t>(rows * 1000 + in);
  const Doubles x = random_doubles(rows * in, DType::f32, seed), weight = random_doubles(out * in, dtype, seed + 1),
                bias = random_doubles(out, DType::f32, seed + 2);
  const Doubles expected = reference::few_rows_product(x, weight, with_bias ? bias : Doubles{}, rows, in, out);
  for_orders([&](LaunchContext& context) {
    OnDevice from(x, DType::f32, "x"), w(weight, dtype, "weight", shift), b(bias, DType::f32, "bias"),
        y(rows * out, DType::f32, "y"), alone(out, DType::f32, "y of a row");
    FewRowsProduct args{.x = from.data<float>(),
                        .weight = w.data(),
                        .bias = with_bias ? b.data<float>() : nullptr,
                        .y = y.data<float>(),
                        .rows = rows,
                        .in = in,
                        .out = out,
                        .dtype = dtype};
    few_rows_product(context, args);
    const Doubles all = y.doubles();
    CHECK(error_of(all, expected) < forward_tolerance(DType::f32, in));
    CHECK((y.intact() && from.intact() && w.intact()));
    // Bits do not depend on the other rows. An odd row of x may be loaded in smaller pieces, in the same order.
    args.x += (rows - 1) * in, args.y = alone.data<float>(), args.rows = 1;
    few_rows_product(context, args);
    CHECK(alone.doubles() == Doubles(all.end() - out, all.end()));
  });
}

/// Keys and values of one sequence, with garbage behind its tokens.
struct Cache {
  Cache(const Doubles& kv, int64_t tokens, int64_t kv_heads, int64_t head_dim)
      : at(Doubles(static_cast<size_t>(key_cache_elems(key_cache_capacity(tokens + 1), kv_heads, head_dim)), NAN),
           DType::f32, "cache"),
        earlier(kv, DType::f32, "earlier keys"),
        keep{.k = earlier.data<float>(),
             .v = earlier.data<float>(kv_heads * head_dim),
             .to = {.at = at.data<float>(), .capacity = key_cache_capacity(tokens + 1)},
             .rows = tokens,
             .row_stride = 2 * kv_heads * head_dim,
             .kv_heads = kv_heads,
             .head_dim = head_dim} {}

  OnDevice at, earlier;
  KeepKeys keep;
};

void check_attention(const std::vector<reference::DecodedSequence>& sequences, int64_t heads, int64_t kv_heads,
                     int64_t head_dim, double spread = 1.0) {
  const int64_t rows = std::ssize(sequences), width = heads * head_dim;
  CAPTURE(rows, sequences.front().token, sequences.front().keys, heads, kv_heads, head_dim);
  const reference::DecodedTokens tokens(sequences, heads, kv_heads, head_dim, spread);
  for_orders([&](LaunchContext& context) {
    std::vector<std::unique_ptr<Cache>> caches;
    std::vector<Attending> attending;
    for (size_t r = 0; r < sequences.size(); ++r) {
      const auto [token, keys] = sequences[r];
      caches.push_back(std::make_unique<Cache>(tokens.kv[r], token, kv_heads, head_dim));
      KeepKeys keep = caches.back()->keep;
      // In two parts, as texts grow.
      keep.rows = token / 2;
      keep_keys(context, keep);
      keep.k += keep.rows * keep.row_stride, keep.v += keep.rows * keep.row_stride, keep.first = keep.rows;
      keep.rows = token - keep.rows;
      keep_keys(context, keep);
      attending.push_back({.cache = keep.to, .begin = token + 1 - keys, .token = token});
    }
    OnDevice qkv(tokens.qkv, DType::f32, "qkv"), out(rows * width, DType::f32, "out"),
        alone(width, DType::f32, "out of a row");
    OneTokenAttention args{.qkv = qkv.data<float>(),
                           .out = out.data<float>(),
                           .rows = attending,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .head_dim = head_dim,
                           .scale = tokens.scale};
    OnDevice workspace(attention_scores(args, DeviceKind::cuda), DType::f32, "workspace");
    args.scores = workspace.data<float>();
    one_token_attention(context, args);
    const Doubles all = out.doubles();
    CHECK(error_of(all, tokens.out) < forward_tolerance(DType::f32, head_dim + sequences.front().keys));
    CHECK((out.intact() && workspace.intact() && qkv.intact()));
    for (const auto& cache : caches) CHECK(cache->at.intact());
    // The last row has the same bits alone.
    args.rows = args.rows.last(1);
    args.qkv += (rows - 1) * tokens.width, args.out = alone.data<float>();
    one_token_attention(context, args);
    CHECK(alone.doubles() == Doubles(all.end() - width, all.end()));
  });
}

}  // namespace

TEST_CASE("decode: products of few rows equal double, each row as if it were alone, aligned or not") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t rows = 1; rows <= kFewRows; ++rows) check_product(rows, 48, 37, dtype, rows % 2 == 0);
    // Around a pack, and around the packs of a warp.
    for (int64_t in : {1, 3, 4, 7, 8, 9, 127, 128, 129, 256, 257, 520}) check_product(2, in, 5, dtype, true);
    for (int64_t out : {1, 2, 7, 8, 9, 16, 17}) check_product(1, 64, out, dtype, false);
    check_product(3, 64, 9, dtype, true, 1);
  }
}

TEST_CASE("decode: attention of one token equals double around the ends of blocks of keys and of parts") {
  for (int64_t keys : {1, 2, 15, 16, 17, 127, 128, 129, 300}) check_attention({{keys - 1, keys}}, 2, 2, 16);
  check_attention({{300, 301}}, 3, 1, 8, 8.0);  // scores far apart
}

TEST_CASE("decode: attention of one token takes any width of heads up to 256") {
  for (int64_t head_dim : {1, 3, 6, 20, 64, 104, 128, 255, 256}) check_attention({{8, 9}}, 2, 2, head_dim);
  check_attention({{140, 141}}, 4, 2, 128);
}

TEST_CASE("decode: heads share keys and values in groups of any size") {
  for (int64_t group : {1, 2, 3, 4, 5, 8, 9, 16}) check_attention({{20, 21}, {150, 151}}, 2 * group, 2, 12);
}

TEST_CASE("decode: attention of several sequences is that of each, and a window hides its earlier tokens") {
  check_attention({{40, 41}, {0, 1}, {299, 300}}, 4, 2, 32);
  for (int64_t token : {15, 16, 31, 140}) check_attention({{token, 5}, {token + 1, 16}, {250, 137}}, 4, 2, 12);
  // More rows than one launch takes.
  std::vector<reference::DecodedSequence> many;
  for (int64_t r = 0; r < kFewRows + 3; ++r) many.push_back({20 * r, 20 * r + 1});
  check_attention(many, 2, 1, 8);
}

TEST_CASE("decode: operands that the device's kernels cannot take are refused") {
  LaunchContext context = cuda_context();
  OnDevice memory(64, DType::f32, "memory");
  std::vector<Attending> rows{{.cache = {.at = memory.data<float>(1), .capacity = 16}, .begin = 0, .token = 4}};
  OneTokenAttention args{.qkv = memory.data<float>(),
                         .out = memory.data<float>(),
                         .scores = memory.data<float>(),
                         .rows = rows,
                         .heads = 1,
                         .kv_heads = 1,
                         .head_dim = 1};
  CHECK_THROWS_WITH(one_token_attention(context, args),
                    "[one_token_attention] a cache is not aligned to 16 bytes, as cuda needs.");
  args.head_dim = 257;
  CHECK_THROWS_WITH(one_token_attention(context, args),
                    "[one_token_attention] head_dim is 257, need at most 256 on cuda.");
  double sum = 0;
  CHECK_THROWS_AS(read_all(context, {.at = memory.data<float>(), .elems = 1, .sum = &sum}), ResourceError);
}
