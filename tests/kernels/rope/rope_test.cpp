// SPDX-License-Identifier: Apache-2.0
// The rotary embedding against double.

#include "kernels/rope/rope.h"

#include "engine/base/check.h"
#include "tests/kernels/common/op_test.h"
#include "tests/reference/activations.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr float kTheta = 10000.0f;

void check(int64_t batch, int64_t tokens, int64_t heads, int64_t head_dim, int64_t gap, int64_t offset, DType dtype) {
  INFO(fmt::format("{} B{} T{} H{} E{} gap {} offset {}", name_of(dtype), batch, tokens, heads, head_dim, gap, offset));
  const int64_t stride = heads * head_dim + gap;
  const Doubles x = random_doubles(batch * tokens * stride, dtype, static_cast<uint32_t>(tokens * head_dim));
  Tensor table((tokens + offset) * head_dim, DType::f32);
  rope_table(table.data<float>(), tokens + offset, head_dim, kTheta);
  CHECK(table.guard_intact());
  for (bool inverse : {false, true}) {
    Doubles expected = x;
    for (int64_t row = 0; row < batch * tokens; ++row)
      for (int64_t h = 0; h < heads; ++h) {
        const auto at = expected.begin() + row * stride + h * head_dim;
        Doubles head(at, at + head_dim);
        reference::rotate(head, row % tokens + offset, kTheta, inverse);
        std::copy(head.begin(), head.end(), at);
      }
    for_isas_and_threads<Rope>(
        SLIP_EVERY_ISA(rope_cpu), [&](LaunchContext& context, auto function, const std::string& label) {
          INFO(label);
          Tensor turned(x, dtype);
          Rope args = {turned.data(), batch,  tokens,  heads, head_dim,           stride,
                       kTheta,        offset, inverse, dtype, table.data<float>()};
          function(context, args);
          // Detects neighbours as pairs, a position off by one and a lost sign.
          CHECK(error_of(turned.doubles(), expected) < forward_tolerance(dtype, 2));
          args.inverse = !inverse;
          function(context, args);
          CHECK(error_of(turned.doubles(), x) < forward_tolerance(dtype, 2, 2));  // two roundings
          CHECK(turned.guard_intact());
        });
  }
}

}  // namespace

TEST_CASE("rope: the reference's inverse is the derivative of its turn, by central differences", "[kernels]") {
  for (int64_t position : {0, 1, 7, 1000}) {
    const Doubles x = random_doubles(16, DType::f32, 5, 1.0), upstream = random_doubles(16, DType::f32, 6, 1.0);
    const auto loss = [&](const Doubles& v) {
      Doubles turned = v;
      reference::rotate(turned, position, kTheta, false);
      double total = 0;
      for (size_t i = 0; i < turned.size(); ++i) total += turned[i] * upstream[i];
      return total;
    };
    Doubles gradient = upstream;
    reference::rotate(gradient, position, kTheta, true);
    CHECK(error_of(central_differences(loss, x), gradient) < 1e-6);
  }
}

TEST_CASE("rope: equals the reference, inverse undoes it, elements between rows stay", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t head_dim : {2, 6, 8, 14, 16, 18, 20, 32, 34, 64, 80, 128}) check(1, 7, 2, head_dim, 0, 0, dtype);
    check(3, 17, 3, 16, 5, 0, dtype);
    check(2, 5, 1, 8, 0, 1000, dtype);
    check(1, 1, 1, 2, 1, 1, dtype);
  }
}

TEST_CASE("rope: llama3 scaling is the published rule", "[kernels]") {
  // Llama 3.1's constants and head; frequencies by the rule on wave lengths as transformers writes it.
  constexpr int64_t kHead = 128;
  constexpr double kBase = 500000, kFactor = 8, kLow = 1, kHigh = 4, kOld = 8192;
  Tensor table(3 * kHead, DType::f32);
  rope_table(table.data<float>(), 3, kHead, 500000.0f, {8, 1, 4, 8192});
  int stretched = 0, kept = 0;
  for (int64_t j = 0; j < kHead / 2; ++j) {
    const double plain = std::pow(kBase, -2.0 * static_cast<double>(j) / kHead),
                 wave = 2 * 3.14159265358979323846 / plain;
    double frequency = plain;
    if (wave > kOld / kLow) {
      frequency = plain / kFactor, ++stretched;
    } else if (wave < kOld / kHigh) {
      ++kept;
    } else {
      const double smooth = (kOld / wave - kLow) / (kHigh - kLow);
      frequency = (1 - smooth) * plain / kFactor + smooth * plain;
    }
    INFO(j);
    for (int64_t p : {0, 1, 2}) {
      const auto angle = static_cast<double>(p) * frequency;
      CHECK(std::abs(static_cast<double>(table.data<float>()[p * kHead + j]) - std::cos(angle)) < 1e-7);
      CHECK(std::abs(static_cast<double>(table.data<float>()[p * kHead + kHead / 2 + j]) - std::sin(angle)) < 1e-7);
    }
  }
  CHECK(stretched > 20);
  CHECK(kept > 20);
  CHECK(stretched + kept < kHead / 2);
  CHECK_THROWS_WITH(rope_table(table.data<float>(), 1, kHead, 1e4f, {8, 4, 4, 8192}),
                    "[rope_table] low_freq_factor is 4, need less than high_freq_factor 4.");
}

TEST_CASE("rope: impossible operands are refused, the cost equals the formula in the header", "[kernels]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  Rope args;
  args.batch = args.tokens = args.heads = 1, args.head_dim = 7, args.row_stride = 7;
  CHECK_THROWS_WITH(rope(context, args), "[rope] head_dim is 7, need an even number: rotations act on pairs.");
  args.head_dim = 8;
  CHECK_THROWS_WITH(rope(context, args), "[rope] row_stride is 7, need at least 8.");
  args.row_stride = 8;
  CHECK_THROWS_AS(rope(context, args), ShapeError);
  CHECK(rope_cost(args).flops == 24);
  CHECK(rope_cost(args).bytes == 2 * 8 * 4 + 4 * 8);
  CHECK_THROWS_AS(rope_table(nullptr, 1, 3, kTheta), ShapeError);
}
