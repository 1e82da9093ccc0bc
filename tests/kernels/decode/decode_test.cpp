// SPDX-License-Identifier: Apache-2.0
// The ops of text generation against double.

#include "kernels/decode/decode.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "tests/reference/decode.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

void check_product(int64_t rows, int64_t in, int64_t out, DType dtype, bool with_bias) {
  INFO(fmt::format("{} R{} {} -> {} bias {}", name_of(dtype), rows, in, out, with_bias));
  const auto seed = static_cast<uint32_t>(rows * 1000 + in);
  const Doubles x = random_doubles(rows * in, DType::f32, seed), weight = random_doubles(out * in, dtype, seed + 1),
                bias = random_doubles(out, DType::f32, seed + 2);
  const Doubles expected = reference::few_rows_product(x, weight, with_bias ? bias : Doubles{}, rows, in, out);
  Tensor from(x, DType::f32), w(weight, dtype), b(bias, DType::f32), first(0, DType::f32);
  std::string first_isa;
  for_isas_and_threads<FewRowsProduct>(
      SLIP_EVERY_ISA(few_rows_product_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
        INFO(label);
        Tensor y(rows * out, DType::f32);
        function(context, {from.data<float>(), w.data(), with_bias ? b.data<float>() : nullptr, y.data<float>(), rows,
                           in, out, dtype});
        CHECK(error_of(y.doubles(), expected) < forward_tolerance(DType::f32, in));
        CHECK(y.guard_intact());
        if (label.substr(0, 5) != first_isa) first_isa = label.substr(0, 5), first = y;
        CHECK(y == first);  // bits do not depend on threads
        // Nor on the other rows: the last row alone.
        Tensor alone(out, DType::f32);
        function(context, {from.data<float>() + (rows - 1) * in, w.data(), with_bias ? b.data<float>() : nullptr,
                           alone.data<float>(), 1, in, out, dtype});
        CHECK(std::equal(alone.data<float>(), alone.data<float>() + out, y.data<float>() + (rows - 1) * out));
      });
}

struct Case {
  std::vector<reference::DecodedSequence> sequences;
  int64_t heads = 1, kv_heads = 1, head_dim = 8;
  int64_t window = 0;
  double spread = 1.0;
};

void check_attention(const Case& c, DType dtype) {
  const int64_t rows = std::ssize(c.sequences);
  INFO(fmt::format("R{} N{} H{}/{} E{} {}", rows, c.sequences.front().keys, c.heads, c.kv_heads, c.head_dim,
                   name_of(dtype)));
  const reference::DecodedTokens tokens(c.sequences, c.heads, c.kv_heads, c.head_dim, c.spread, dtype);
  const int64_t kv_width = tokens.kv_width, out_width = c.heads * c.head_dim;
  int64_t longest = 0;
  for (const auto& sequence : c.sequences) longest = std::max(longest, sequence.token + 1);
  const int64_t capacity = key_cache_capacity(longest), elems = key_cache_elems(capacity, c.kv_heads, c.head_dim);
  Tensor from(tokens.qkv, DType::f32), first(0, DType::f32);
  std::string first_isa;
  for_isas_and_threads<OneTokenAttention>(
      SLIP_EVERY_ISA(one_token_attention_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
        INFO(label);
        // Memory after the tokens may have any bits. The first sequence rests, and the others are not in order.
        Tensor memory(Doubles(static_cast<size_t>((rows + 1) * elems), NAN), dtype);
        const KeyCache cache{.at = memory.data(), .capacity = capacity, .dtype = dtype};
        std::vector<int32_t> which, at;
        for (int64_t r = 0; r < rows; ++r) {
          which.push_back(static_cast<int32_t>(rows - r));
          at.push_back(static_cast<int32_t>(c.sequences[static_cast<size_t>(r)].token));
          Tensor earlier(tokens.kv[static_cast<size_t>(r)], DType::f32);
          keep_keys(context, {.k = earlier.data<float>(),
                              .v = earlier.data<float>() + kv_width,
                              .to = cache,
                              .sequence = which.back(),
                              .rows = at.back(),
                              .row_stride = 2 * kv_width,
                              .kv_heads = c.kv_heads,
                              .head_dim = c.head_dim});
        }
        OneTokenAttention args{.qkv = from.data<float>(),
                               .cache = cache,
                               .sequences = which.data(),
                               .tokens = at.data(),
                               .rows = rows,
                               .window = c.window,
                               .heads = c.heads,
                               .kv_heads = c.kv_heads,
                               .head_dim = c.head_dim,
                               .scale = tokens.scale};
        Tensor out(rows * out_width, DType::f32), scores(attention_scores(args), DType::f32);
        args.out = out.data<float>(), args.scores = scores.data<float>();
        function(context, args);
        CHECK(error_of(out.doubles(), tokens.out) <
              forward_tolerance(DType::f32, c.head_dim + c.sequences.front().keys));
        CHECK((out.guard_intact() && scores.guard_intact() && memory.guard_intact()));
        if (label.substr(0, 5) != first_isa) first_isa = label.substr(0, 5), first = out;
        CHECK(out == first);
        // The last row has the same bits alone.
        Tensor alone(out_width, DType::f32);
        OneTokenAttention last = args;
        last.sequences += rows - 1, last.tokens += rows - 1, last.rows = 1;
        last.qkv += (rows - 1) * tokens.width, last.out = alone.data<float>();
        function(context, last);
        CHECK(std::equal(last.out, last.out + out_width, args.out + (rows - 1) * out_width));
      });
}
void check_attention(const Case& c) {
  for (const DType dtype : {DType::f32, DType::bf16}) check_attention(c, dtype);
}

/// The sequences of these tokens, of which `window` are visible.
std::vector<reference::DecodedSequence> up_to(const std::vector<int64_t>& tokens, int64_t window = 0) {
  std::vector<reference::DecodedSequence> sequences;
  for (const int64_t token : tokens) sequences.push_back({token, window > 0 ? std::min(token + 1, window) : token + 1});
  return sequences;
}

}  // namespace

TEST_CASE("decode: products of few rows equal double, each row as if it were alone", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t rows = 1; rows <= kFewRows; ++rows) check_product(rows, 50, 37, dtype, rows % 2 == 0);
    for (int64_t in : {1, 7, 8, 16, 31, 32, 33, 64, 257}) check_product(2, in, 5, dtype, true);
  }
}

TEST_CASE("decode: products of many rows are shared among threads, which does not change bits", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t rows : {1, 2, 4, 7}) check_product(rows, 768, 401, dtype, true);
}

TEST_CASE("decode: attention of one token equals double, heads share keys", "[kernels]") {
  for (int64_t keys : {1, 2, 15, 16, 17, 200})
    check_attention({.sequences = up_to({keys - 1}), .heads = 2, .kv_heads = 2, .head_dim = 16});
  for (int64_t head_dim : {1, 3, 6, 20, 64, 104, 128})
    check_attention({.sequences = up_to({8}), .heads = 6, .kv_heads = 2, .head_dim = head_dim});
  check_attention({.sequences = up_to({39}), .heads = 3, .spread = 8.0});  // scores far apart
}

TEST_CASE("decode: attention of several sequences is that of each, and a window hides its earlier tokens",
          "[kernels]") {
  check_attention({.sequences = up_to({40, 0, 99}), .heads = 4, .kv_heads = 2, .head_dim = 32});
  for (int64_t window : {1, 5, 16, 17, 1000})
    check_attention({.sequences = up_to({15, 16, 31, 40, 50}, window),
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 12,
                     .window = window});
}

TEST_CASE("decode: a pass that only reads sums every element once", "[kernels]") {
  for (int64_t elems : {0, 1, 7, 128, 1000, 300000}) {
    const Doubles values = random_doubles(elems, DType::f32, static_cast<uint32_t>(elems + 1));
    double expected = 0, size = 1;
    for (double value : values) expected += value, size += std::abs(value);
    Tensor from(values, DType::f32);
    for_isas_and_threads<ReadAll>(SLIP_EVERY_ISA(read_all_cpu),
                                  [&](LaunchContext& context, auto function, const std::string& label) {
                                    INFO(label);
                                    double sum = -1;
                                    function(context, {from.data<float>(), elems, &sum});
                                    CHECK(std::abs(sum - expected) / size < 1e-6);
                                  });
  }
}

TEST_CASE("decode: impossible operands are refused, costs equal the formula in the header", "[kernels]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
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
