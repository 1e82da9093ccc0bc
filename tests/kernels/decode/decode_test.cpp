// SPDX-License-Identifier: Apache-2.0
// The ops of text generation against double.

#include "kernels/decode/decode.h"

#include "engine/base/check.h"
#include "tests/kernels/common/backend.h"
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
  SameBits same;
  for_machines([&](LaunchContext& context) {
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
    CHECK(same(y));
    // Bits do not depend on the other rows. An odd row of x may be loaded in smaller pieces, in the same order.
    args.x += (rows - 1) * in, args.y = alone.data<float>(), args.rows = 1;
    few_rows_product(context, args);
    CHECK(alone.doubles() == Doubles(all.end() - out, all.end()));
  });
}

/// Attention of sequences whose caches lie side by side, with garbage after their tokens.
struct Case {
  std::vector<reference::DecodedSequence> sequences;
  int64_t heads = 1, kv_heads = 1, head_dim = 8;
  int64_t window = 0;
  DType dtype = DType::f32;
  double spread = 1.0;
};

void check_attention(const Case& c) {
  const auto& sequences = c.sequences;
  const int64_t rows = std::ssize(sequences), width = c.heads * c.head_dim;
  CAPTURE(rows, sequences.front().token, c.window, c.heads, c.kv_heads, c.head_dim, name_of(c.dtype));
  const reference::DecodedTokens tokens(sequences, c.heads, c.kv_heads, c.head_dim, c.spread, c.dtype);
  int64_t longest = 0;
  for (const auto& sequence : sequences) longest = std::max(longest, sequence.token + 1);
  SameBits same;
  for_machines([&](LaunchContext& context) {
    const int64_t capacity = key_cache_capacity(longest), elems = key_cache_elems(capacity, c.kv_heads, c.head_dim);
    OnDevice memory(Doubles(static_cast<size_t>((rows + 1) * elems), NAN), c.dtype, "cache");
    const KeyCache cache{.at = memory.data(), .capacity = capacity, .dtype = c.dtype};
    std::vector<int32_t> which, at;
    for (size_t r = 0; r < sequences.size(); ++r) {
      which.push_back(static_cast<int32_t>(rows - static_cast<int64_t>(r)));  // not in order, and the first one rests
      at.push_back(static_cast<int32_t>(sequences[r].token));
      OnDevice earlier(tokens.kv[r], DType::f32, "earlier keys");
      KeepKeys keep{.k = earlier.data<float>(),
                    .v = earlier.data<float>(c.kv_heads * c.head_dim),
                    .to = cache,
                    .sequence = which.back(),
                    .rows = sequences[r].token / 2,  // in two parts, as texts grow
                    .row_stride = 2 * c.kv_heads * c.head_dim,
                    .kv_heads = c.kv_heads,
                    .head_dim = c.head_dim};
      keep_keys(context, keep);
      keep.k += keep.rows * keep.row_stride, keep.v += keep.rows * keep.row_stride, keep.first = keep.rows;
      keep.rows = sequences[r].token - keep.rows;
      keep_keys(context, keep);
    }
    OnDevice qkv(tokens.qkv, DType::f32, "qkv"), out(rows * width, DType::f32, "out"),
        alone(width, DType::f32, "out of a row"), of_sequences(which, "sequences"), of_tokens(at, "tokens");
    OneTokenAttention args{.qkv = qkv.data<float>(),
                           .out = out.data<float>(),
                           .cache = cache,
                           .sequences = of_sequences.data<int32_t>(),
                           .tokens = of_tokens.data<int32_t>(),
                           .rows = rows,
                           .window = c.window,
                           .heads = c.heads,
                           .kv_heads = c.kv_heads,
                           .head_dim = c.head_dim,
                           .scale = tokens.scale};
    OnDevice workspace(attention_scores(args, context.kind), DType::f32, "workspace");
    args.scores = workspace.data<float>();
    one_token_attention(context, args);
    const Doubles all = out.doubles();
    CHECK(error_of(all, tokens.out) < forward_tolerance(DType::f32, c.head_dim + sequences.front().keys));
    CHECK((out.intact() && workspace.intact() && qkv.intact() && memory.intact()));
    CHECK(same(out));
    // The last row has the same bits alone.
    args.sequences += rows - 1, args.tokens += rows - 1, args.rows = 1;
    args.qkv += (rows - 1) * tokens.width, args.out = alone.data<float>();
    one_token_attention(context, args);
    CHECK(alone.doubles() == Doubles(all.end() - width, all.end()));
  });
}

/// The sequences of these tokens, of which `window` are visible.
std::vector<reference::DecodedSequence> up_to(const std::vector<int64_t>& tokens, int64_t window = 0) {
  std::vector<reference::DecodedSequence> sequences;
  for (const int64_t token : tokens) sequences.push_back({token, window > 0 ? std::min(token + 1, window) : token + 1});
  return sequences;
}

constexpr DType kCaches[] = {DType::f32, DType::bf16};

}  // namespace

TEST_CASE("decode: the CPU's products of few rows equal double, each row as if it were alone", "[.][cpu]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t rows = 1; rows <= kFewRows; ++rows) check_product(rows, 50, 37, dtype, rows % 2 == 0);
    for (int64_t in : {1, 7, 8, 16, 31, 32, 33, 64, 257}) check_product(2, in, 5, dtype, true);
    // Shared among threads, which does not change bits.
    for (int64_t rows : {1, 2, 4, 7}) check_product(rows, 768, 401, dtype, true);
  }
}

TEST_CASE("decode: the CPU's attention of one token equals double, heads share keys", "[.][cpu]") {
  for (const DType dtype : kCaches) {
    for (int64_t keys : {1, 2, 15, 16, 17, 200})
      check_attention({.sequences = up_to({keys - 1}), .heads = 2, .kv_heads = 2, .head_dim = 16, .dtype = dtype});
    for (int64_t head_dim : {1, 3, 6, 20, 64, 104, 128})
      check_attention({.sequences = up_to({8}), .heads = 6, .kv_heads = 2, .head_dim = head_dim, .dtype = dtype});
    check_attention({.sequences = up_to({39}), .heads = 3, .dtype = dtype, .spread = 8.0});  // scores far apart
    for (int64_t window : {1, 5, 16, 17, 1000})
      check_attention({.sequences = up_to({15, 16, 31, 40, 50}, window),
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 12,
                       .window = window,
                       .dtype = dtype});
  }
}

TEST_CASE("decode: a pass that only reads sums every element once", "[.][cpu]") {
  for (int64_t elems : {0, 1, 7, 128, 1000, 300000}) {
    const Doubles values = random_doubles(elems, DType::f32, static_cast<uint32_t>(elems + 1));
    double expected = 0, size = 1;
    for (double value : values) expected += value, size += std::abs(value);
    const OnDevice from(values, DType::f32, "from");
    for_machines([&](LaunchContext& context) {
      double sum = -1;
      read_all(context, {.at = from.data<float>(), .elems = elems, .sum = &sum});
      CHECK(std::abs(sum - expected) / size < 1e-6);
    });
  }
}

TEST_CASE("decode: impossible operands are refused, costs equal the formula in the header", "[.][cpu]") {
  LaunchContext context = a_context();
  FewRowsProduct product;
  product.rows = 9, product.in = 2, product.out = 3;
  CHECK_THROWS_WITH(few_rows_product(context, product), "[few_rows_product] rows is 9, need at most 8.");
  product.rows = 2;
  CHECK_THROWS_AS(few_rows_product(context, product), ShapeError);
  CHECK(few_rows_product_cost(product).flops == 2 * 2 * 2 * 3);
  CHECK(few_rows_product_cost(product).bytes == 4 * 6 + 4 * 2 * 5);
  std::vector<float> memory(64);
  const int32_t sequence = 0;
  int32_t token = 4;
  OneTokenAttention attention{
      .cache = {.at = memory.data(), .capacity = 16}, .sequences = &sequence, .tokens = &token, .rows = 1};
  attention.heads = 4, attention.kv_heads = 3, attention.head_dim = 2;
  CHECK_THROWS_WITH(one_token_attention(context, attention),
                    "[one_token_attention] 4 heads cannot share 3 key-value heads: need a divisor of heads.");
  attention.kv_heads = 2;
  CHECK_THROWS_AS(one_token_attention(context, attention), ShapeError);
  CHECK(one_token_attention_cost(attention, 5).flops == 4 * 4 * 2 * 5);
  CHECK(one_token_attention_cost(attention, 5).bytes == 8 * 5 * 4 + 8 * 8);
  attention.cache.dtype = DType::bf16;
  CHECK(one_token_attention_cost(attention, 5).bytes == 4 * 5 * 4 + 8 * 8);
  attention.cache.dtype = DType::f32;
  attention.qkv = attention.out = attention.scores = memory.data();
  token = 16;
  CHECK_THROWS_WITH(one_token_attention(context, attention),
                    "[one_token_attention] 17 tokens exceed the capacity of 16.");
  attention.cache.capacity = 20;
  CHECK_THROWS_WITH(one_token_attention(context, attention),
                    "[one_token_attention] capacity is 20, need a multiple of 16.");
  attention.cache = {.at = memory.data(), .capacity = 16, .dtype = DType::i32};
  CHECK_THROWS_AS(one_token_attention(context, attention), ShapeError);
}

TEST_CASE("decode: products of few rows equal double, each row as if it were alone, aligned or not", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t rows = 1; rows <= kFewRows; ++rows) check_product(rows, 48, 37, dtype, rows % 2 == 0);
    // Around a pack, and around the packs of a warp.
    for (int64_t in : {1, 3, 4, 7, 8, 9, 127, 128, 129, 256, 257, 520}) check_product(2, in, 5, dtype, true);
    for (int64_t out : {1, 2, 7, 8, 9, 16, 17}) check_product(1, 64, out, dtype, false);
    check_product(3, 64, 9, dtype, true, 1);
  }
}

TEST_CASE("decode: attention of one token equals double around the ends of blocks of keys and of parts") {
  for (const DType dtype : kCaches) {
    for (int64_t token : {0, 1, 14, 15, 16, 126, 127, 128, 299})
      check_attention({.sequences = up_to({token}), .heads = 2, .kv_heads = 2, .head_dim = 16, .dtype = dtype});
    // Scores far apart.
    check_attention({.sequences = up_to({300}), .heads = 3, .dtype = dtype, .spread = 8.0});
  }
}

TEST_CASE("decode: attention of one token takes any width of heads up to 256") {
  for (const DType dtype : kCaches) {
    for (int64_t head_dim : {1, 3, 6, 20, 64, 104, 128, 255, 256})
      check_attention({.sequences = up_to({8}), .heads = 2, .kv_heads = 2, .head_dim = head_dim, .dtype = dtype});
    check_attention({.sequences = up_to({140}), .heads = 4, .kv_heads = 2, .head_dim = 128, .dtype = dtype});
  }
}

TEST_CASE("decode: heads share keys and values in groups of any size") {
  for (const DType dtype : kCaches)
    for (int64_t group : {1, 2, 3, 4, 5, 8, 9, 16})
      check_attention(
          {.sequences = up_to({20, 150}), .heads = 2 * group, .kv_heads = 2, .head_dim = 12, .dtype = dtype});
}

TEST_CASE("decode: attention of several sequences is that of each, and a window hides its earlier tokens") {
  for (const DType dtype : kCaches) {
    check_attention({.sequences = up_to({40, 0, 299}), .heads = 4, .kv_heads = 2, .head_dim = 32, .dtype = dtype});
    // A window may begin anywhere in a block of keys, and its last part may be full.
    for (int64_t window : {1, 5, 16, 113, 114, 115, 128, 137, 1000})
      check_attention({.sequences = up_to({15, 16, 140, 250, 255}, window),
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 12,
                       .window = window,
                       .dtype = dtype});
    std::vector<int64_t> many;
    for (int64_t r = 0; r < kFewRows + 3; ++r) many.push_back(20 * r);
    check_attention({.sequences = up_to(many), .heads = 2, .dtype = dtype});
  }
}

TEST_CASE("decode: operands that the device's kernels cannot take are refused", "[cuda]") {
  LaunchContext context = a_context();
  OnDevice memory(64, DType::f32, "memory");
  OneTokenAttention args{.qkv = memory.data<float>(),
                         .out = memory.data<float>(),
                         .scores = memory.data<float>(),
                         .cache = {.at = memory.data<float>(1), .capacity = 16},
                         .sequences = memory.data<int32_t>(),
                         .tokens = memory.data<int32_t>(),
                         .rows = 1,
                         .heads = 1,
                         .kv_heads = 1,
                         .head_dim = 1};
  CHECK_THROWS_WITH(one_token_attention(context, args),
                    "[one_token_attention] the cache is not aligned to 16 bytes, as cuda needs.");
  args.head_dim = 257;
  CHECK_THROWS_WITH(one_token_attention(context, args),
                    "[one_token_attention] head_dim is 257, need at most 256 on cuda.");
  double sum = 0;
  CHECK_THROWS_AS(read_all(context, {.at = memory.data<float>(), .elems = 1, .sum = &sum}), ResourceError);
}
