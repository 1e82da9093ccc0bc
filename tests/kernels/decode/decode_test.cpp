// SPDX-License-Identifier: Apache-2.0
// The ops of text generation against double.

#include "kernels/decode/decode.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "tests/kernels/common/op_test.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

void check_product(int64_t rows, int64_t in, int64_t out, DType dtype, bool with_bias) {
  INFO(fmt::format("{} R{} {} -> {} bias {}", name_of(dtype), rows, in, out, with_bias));
  const auto seed = static_cast<uint32_t>(rows * 1000 + in);
  const Doubles x = random_doubles(rows * in, DType::f32, seed), weight = random_doubles(out * in, dtype, seed + 1),
                bias = random_doubles(out, DType::f32, seed + 2);
  Doubles expected(static_cast<size_t>(rows * out));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < out; ++o) {
      double sum = with_bias ? bias[static_cast<size_t>(o)] : 0;
      for (int64_t i = 0; i < in; ++i)
        sum += x[static_cast<size_t>(r * in + i)] * weight[static_cast<size_t>(o * in + i)];
      expected[static_cast<size_t>(r * out + o)] = sum;
    }
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

void check_attention(int64_t keys, int64_t heads, int64_t kv_heads, int64_t head_dim, double spread = 1.0) {
  INFO(fmt::format("N{} H{}/{} E{}", keys, heads, kv_heads, head_dim));
  const int64_t stride = 2 * kv_heads * head_dim + 3, group = heads / kv_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const auto seed = static_cast<uint32_t>(keys * 1000 + head_dim);
  const Doubles q = random_doubles(heads * head_dim, DType::f32, seed, spread),
                kv = random_doubles(keys * stride, DType::f32, seed + 1, spread);
  Doubles expected(q.size());
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t at_k = h / group * head_dim, at_v = at_k + kv_heads * head_dim;
    Doubles scores(static_cast<size_t>(keys));
    for (int64_t s = 0; s < keys; ++s)
      for (int64_t e = 0; e < head_dim; ++e)
        scores[static_cast<size_t>(s)] += static_cast<double>(scale) * q[static_cast<size_t>(h * head_dim + e)] *
                                          kv[static_cast<size_t>(s * stride + at_k + e)];
    const double highest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - highest);
    for (int64_t s = 0; s < keys; ++s)
      for (int64_t e = 0; e < head_dim; ++e)
        expected[static_cast<size_t>(h * head_dim + e)] +=
            scores[static_cast<size_t>(s)] / sum * kv[static_cast<size_t>(s * stride + at_v + e)];
  }
  Tensor from(q, DType::f32), cache(kv, DType::f32), first(0, DType::f32);
  std::string first_isa;
  for_isas_and_threads<OneTokenAttention>(
      SLIP_EVERY_ISA(one_token_attention_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
        INFO(label);
        Tensor out(heads * head_dim, DType::f32), scores(heads * keys, DType::f32);
        function(context, {from.data<float>(), cache.data<float>(), cache.data<float>() + kv_heads * head_dim,
                           out.data<float>(), scores.data<float>(), keys, heads, kv_heads, head_dim, stride, scale});
        CHECK(error_of(out.doubles(), expected) < forward_tolerance(DType::f32, head_dim + keys));
        CHECK((out.guard_intact() && scores.guard_intact()));
        if (label.substr(0, 5) != first_isa) first_isa = label.substr(0, 5), first = out;
        CHECK(out == first);
      });
}

}  // namespace

TEST_CASE("decode: products of few rows equal double, each row as if it were alone", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t rows = 1; rows <= kFewRows; ++rows) check_product(rows, 50, 37, dtype, rows % 2 == 0);
    for (int64_t in : {1, 7, 8, 16, 31, 32, 33, 64, 257}) check_product(2, in, 5, dtype, true);
  }
}

TEST_CASE("decode: attention of one token equals double, heads share keys", "[kernels]") {
  for (int64_t keys : {1, 2, 15, 16, 17, 200}) check_attention(keys, 2, 2, 16);
  for (int64_t head_dim : {1, 6, 20, 64, 128}) check_attention(9, 6, 2, head_dim);
  check_attention(40, 3, 1, 8, 8.0);  // scores far apart
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
  OneTokenAttention attention;
  attention.keys = 5, attention.heads = 4, attention.kv_heads = 3, attention.head_dim = 2;
  CHECK_THROWS_WITH(one_token_attention(context, attention),
                    "[one_token_attention] 4 heads cannot share 3 key-value heads: need a divisor of heads.");
  attention.kv_heads = 2, attention.kv_stride = 4;
  CHECK_THROWS_AS(one_token_attention(context, attention), ShapeError);
  CHECK(one_token_attention_cost(attention).flops == 4 * 4 * 2 * 5);
  CHECK(one_token_attention_cost(attention).bytes == 8 * 5 * 4 + 8 * 8);
}
