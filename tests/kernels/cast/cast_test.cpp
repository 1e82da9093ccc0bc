// SPDX-License-Identifier: Apache-2.0
// Conversions bit by bit against the scalar type and against the formats' definitions, sums, and copies.

#include "kernels/cast/cast.h"

#include <limits>

#include "engine/base/check.h"
#include "tests/kernels/common/cases.h"
#include "tests/reference/elementwise.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

/// Equal, including signs of zeros; any NaN equals any other.
bool same_value(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

}  // namespace

TEST_CASE("every bfloat16 survives a round trip, NaN stays NaN") {
  std::vector<bfloat16> all(65536), back(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  std::vector<float> wide(65536);
  for_each_machine([&](Isa isa, LaunchContext& context) {
    SLIP_CALL_ON(isa, cast_cpu(context, {all.data(), wide.data(), 65536, DType::bf16, DType::f32}));
    SLIP_CALL_ON(isa, cast_cpu(context, {wide.data(), back.data(), 65536, DType::f32, DType::bf16}));
    int64_t wrong = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const double value = reference::bfloat16_value(all[i].bits);
      wrong += !same_value(wide[i], value) || !same_value(static_cast<float>(all[i]), value);
      wrong += std::isnan(value) ? !std::isnan(static_cast<float>(back[i])) : back[i].bits != all[i].bits;
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("floats round to nearest, ties to even") {
  const Philox philox(kSeed, "bits");
  for (int64_t elems : {1, 7, 9, 31, 16385, 50003}) {
    std::vector<float> from(static_cast<size_t>(elems));
    for (size_t i = 0; i < from.size(); ++i) {
      uint32_t bits = static_cast<uint32_t>(philox.bits(i));
      if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;  // a tie
      from[i] = std::bit_cast<float>(bits);
    }
    from.back() = std::numeric_limits<float>::max();  // nearer to infinity than to a bfloat16
    for_each_machine([&](Isa isa, LaunchContext& context) {
      std::vector<bfloat16> to(from.size() + 1, bfloat16(42.0f));
      SLIP_CALL_ON(isa, cast_cpu(context, {from.data(), to.data(), elems, DType::f32, DType::bf16}));
      int64_t wrong = 0, truncation_differs = 0;
      for (size_t i = 0; i < from.size(); ++i) {
        wrong += to[i].bits != bfloat16(from[i]).bits;
        wrong +=
            !same_value(reference::bfloat16_value(to[i].bits), reference::rounded(from[i], reference::kBfloat16Bits));
        truncation_differs += to[i].bits != std::bit_cast<uint32_t>(from[i]) >> 16;
      }
      CHECK(wrong == 0);
      CHECK((elems < 100 || truncation_differs > 0));
      CHECK(static_cast<float>(to.back()) == 42.0f);
    });
  }
}

TEST_CASE("copies keep every bit and sums add element by element") {
  for (int64_t elems : {1, 17, 40001}) {
    const auto x = random<float>(elems, "x"), start = random<float>(elems, "y");
    const auto want = reference::sum({x.begin(), x.end()}, {start.begin(), start.end()}, reference::kFloatBits);
    for_each_machine([&](Isa isa, LaunchContext& context) {
      std::vector<float> to(x.size()), y = start;
      SLIP_CALL_ON(isa, cast_cpu(context, {x.data(), to.data(), elems, DType::f32, DType::f32}));
      CHECK(same_bits(to, x));
      SLIP_CALL_ON(isa, add_cpu(context, {x.data(), y.data(), elems}));
      CHECK(std::equal(y.begin(), y.end(), want.begin(), same_value));
    });
  }
}

TEST_CASE("types other than float32 and bfloat16 are refused") {
  LaunchContext context = context_of(1);
  float value = 0.0f;
  CHECK_THROWS_AS(cast(context, {&value, &value, 1, DType::i32, DType::f32}), ShapeError);
  CHECK_THROWS_AS(cast(context, {&value, nullptr, 1, DType::f32, DType::bf16}), ShapeError);
  CHECK_THROWS_AS(add(context, {&value, &value, -1}), ShapeError);
  CHECK(cast_cost({nullptr, nullptr, 10, DType::f32, DType::bf16}).bytes == 60);
}
