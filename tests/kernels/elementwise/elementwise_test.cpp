// SPDX-License-Identifier: Apache-2.0
// Conversions, sums, activations and the rotary embedding against double and against the formats' definitions.

#include "tests/reference/elementwise.h"

#include <limits>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "kernels/cast/cast.h"
#include "kernels/gelu/gelu.h"
#include "kernels/residual/residual.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/kernels/common/backend.h"
#include "tests/reference/activations.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16};
constexpr float kTheta = 10000.0f;

/// Around a vector of either type and the share of a thread; on a GPU around a pack and a block of threads of packs.
std::vector<int64_t> sizes() {
  if (on_cpu()) return {1, 3, 7, 8, 9, 15, 16, 17, 31, 4095, 8193, 12289, 16385, 32771, 49157};
  return {1, 3, 4, 5, 7, 8, 9, 1023, 1024, 1025, 2049};
}
/// GPUs read operands that are not aligned to 16 bytes by element.
std::vector<int64_t> shifts() { return on_cpu() ? std::vector<int64_t>{0} : std::vector<int64_t>{0, 1}; }

constexpr int significant_bits(DType dtype) {
  return dtype == DType::f32 ? reference::kFloatBits : reference::kBfloat16Bits;
}
Doubles rounded(Doubles x, DType dtype) {
  for (double& value : x) value = reference::rounded(value, significant_bits(dtype));
  return x;
}
/// Equal, including signs of zeros; any NaN equals any other.
bool same_values(const Doubles& a, const Doubles& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::isnan(x) ? std::isnan(y) : x == y && std::signbit(x) == std::signbit(y);
  });
}
template <typename Function>
Doubles mapped(const Doubles& x, const Function& function) {
  Doubles y;
  for (double value : x) y.push_back(function(value));
  return y;
}

/// One conversion by one machine.
void check_cast(LaunchContext& context, const Doubles& x, DType from, DType to, const Doubles& expected,
                int64_t shift = 0) {
  const auto elems = static_cast<int64_t>(x.size());
  const OnDevice in(x, from, "from", shift), out(elems, to, "to", shift);
  cast(context, {in.data(), out.data(), elems, from, to});
  CHECK(same_values(out.doubles(), expected));
  CHECK((in.intact() && out.intact()));
}

void check_gelu(const Doubles& x, DType dtype) {
  const auto elems = static_cast<int64_t>(x.size());
  CAPTURE(elems, name_of(dtype));
  const Doubles dy = random_doubles(elems, dtype, 5), y = mapped(x, reference::gelu);
  Doubles dx = mapped(x, reference::gelu_derivative);
  for (size_t i = 0; i < x.size(); ++i) dx[i] *= dy[i];
  for_machines([&](LaunchContext& context) {
    OnDevice in(x, dtype, "x"), d(dy, dtype, "dy"), out(elems, dtype, "y");
    gelu_forward(context, {in.data(), out.data(), elems, dtype});
    // Detects the erf form (5e-4 apart where |x| is about 2) and a coefficient with a wrong third digit.
    CHECK(error_of(out.doubles(), y) < forward_tolerance(dtype, 1));
    gelu_backward(context, {d.data(), in.data(), out.data(), elems, dtype});
    CHECK(error_of(out.doubles(), dx) < gradient_tolerance(dtype, 1));
    const OnDevice other(x, dtype, "x");
    gelu_backward(context, {d.data(), other.data(), d.data(), elems, dtype});
    CHECK(d.bytes() == out.bytes());
    d.set(dy);
    gelu_backward(context, {d.data(), other.data(), other.data(), elems, dtype});
    CHECK(other.bytes() == out.bytes());
    gelu_forward(context, {in.data(), out.data(), elems, dtype});
    gelu_forward(context, {in.data(), in.data(), elems, dtype});
    CHECK(in.bytes() == out.bytes());
    CHECK((in.intact() && out.intact() && d.intact() && other.intact()));
  });
}

}  // namespace

TEST_CASE("cast: every bfloat16 survives a round trip, NaN stays NaN") {
  std::vector<uint8_t> bits;
  Doubles values;
  for (uint32_t i = 0; i < 65536; ++i) {
    bits.insert(bits.end(), {static_cast<uint8_t>(i), static_cast<uint8_t>(i >> 8)});
    values.push_back(reference::bfloat16_value(static_cast<uint16_t>(i)));
    bfloat16 scalar;
    scalar.bits = static_cast<uint16_t>(i);
    if (!same_values({static_cast<double>(static_cast<float>(scalar))}, {values.back()}))
      FAIL_CHECK("bfloat16 with the bits " << i);
  }
  for_machines([&](LaunchContext& context) {
    const OnDevice all(65536, DType::bf16, "all"), wide(65536, DType::f32, "wide"), back(65536, DType::bf16, "back");
    write_device(all.data(), bits.data(), bits.size());
    cast(context, {all.data(), wide.data(), 65536, DType::bf16, DType::f32});
    cast(context, {wide.data(), back.data(), 65536, DType::f32, DType::bf16});
    CHECK(same_values(wide.doubles(), values));
    CHECK(same_values(back.doubles(), values));
  });
}

TEST_CASE("cast: floats round to nearest, ties to even") {
  const Philox philox(20261121, "bits");
  for (int64_t elems : {1, 7, 9, 31, 16385, 50003}) {
    if (!on_cpu() && elems > 20000) continue;
    Doubles from;
    int64_t truncation_differs = 0;
    for (size_t i = 0; i < static_cast<size_t>(elems); ++i) {
      uint32_t bits = static_cast<uint32_t>(philox.bits(i));
      if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;  // a tie
      from.push_back(static_cast<double>(std::bit_cast<float>(bits)));
      truncation_differs += bfloat16(std::bit_cast<float>(bits)).bits != bits >> 16;
    }
    from.back() = static_cast<double>(std::numeric_limits<float>::max());  // nearer to infinity than to a bfloat16
    CHECK((elems < 100 || truncation_differs > 0));
    CHECK(same_values(Tensor(from, DType::bf16).doubles(), rounded(from, DType::bf16)));  // the scalar type
    for_machines([&](LaunchContext& context) {
      check_cast(context, from, DType::f32, DType::bf16, rounded(from, DType::bf16));
    });
  }
}

TEST_CASE("cast: both types to both types round once, aligned or not") {
  for (DType from : kTypes)
    for (DType to : kTypes)
      for (int64_t elems : sizes())
        for (int64_t shift : shifts()) {
          CAPTURE(elems, shift, name_of(from), name_of(to));
          const Doubles x = random_doubles(elems, from, 1);
          for_machines([&](LaunchContext& context) { check_cast(context, x, from, to, rounded(x, to), shift); });
        }
}

TEST_CASE("cast: ties go to even, NaN stays NaN, infinities stay") {
  const Doubles x = {1.00390625, 1.01171875, -1.00390625, NAN, INFINITY, -INFINITY, 3.4e38, 1e-41};
  for_machines([&](LaunchContext& context) {
    check_cast(context, x, DType::f32, DType::bf16, rounded(Tensor(x, DType::f32).doubles(), DType::bf16));
  });
}

TEST_CASE("cast: types other than float32 and bfloat16 are refused", "[.][cpu]") {
  LaunchContext context = a_context();
  float value = 0.0f;
  CHECK_THROWS_AS(cast(context, {&value, &value, 1, DType::i32, DType::f32}), ShapeError);
  CHECK_THROWS_AS(cast(context, {&value, nullptr, 1, DType::f32, DType::bf16}), ShapeError);
  CHECK_THROWS_AS(add(context, {&value, &value, -1}), ShapeError);
  CHECK(cast_cost({nullptr, nullptr, 10, DType::f32, DType::bf16}).bytes == 60);
}

TEST_CASE("add and residual: every element is the rounded sum, in place too") {
  for (int64_t elems : sizes())
    for (int64_t shift : shifts())
      for (DType dtype : kTypes) {
        CAPTURE(elems, shift, name_of(dtype));
        const Doubles a = random_doubles(elems, dtype, 1), b = random_doubles(elems, dtype, 2);
        const Doubles total = reference::sum(a, b, significant_bits(dtype));
        for_machines([&](LaunchContext& context) {
          OnDevice left(a, dtype, "a", shift), right(b, dtype, "b"), y(elems, dtype, "y");
          residual(context, {left.data(), right.data(), y.data(), elems, dtype});
          CHECK(y.doubles() == total);
          residual(context, {left.data(), right.data(), left.data(), elems, dtype});
          CHECK(left.doubles() == total);
          left.set(a);
          residual(context, {left.data(), right.data(), right.data(), elems, dtype});
          CHECK(right.doubles() == total);
          CHECK((y.intact() && left.intact() && right.intact()));
          if (dtype == DType::bf16) return;
          right.set(b);
          add(context, {right.data<float>(), left.data<float>(), elems});
          CHECK(left.doubles() == total);
          CHECK(left.intact());
        });
      }
}

TEST_CASE("residual: impossible operands are refused, the cost equals the formula in the header", "[.][cpu]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  CHECK_THROWS_WITH(residual(context, {nullptr, nullptr, nullptr, 1, DType::f32}),
                    "[residual] operand 0 is null. Pass every operand that is not optional in the op's header.");
  CHECK(residual_cost({nullptr, nullptr, nullptr, 5, DType::bf16}).bytes == 30);
}

TEST_CASE("gelu: the reference's derivative is its central difference", "[.][cpu]") {
  const Doubles x = random_doubles(50, DType::f32, 9, 2.0);
  Doubles derivative;
  for (double value : x) derivative.push_back(reference::gelu_derivative(value));
  const auto loss = [](const Doubles& v) {
    double total = 0;
    for (double value : v) total += reference::gelu(value);
    return total;
  };
  CHECK(error_of(central_differences(loss, x), derivative) < 1e-6);
}

TEST_CASE("gelu: equals the reference at any length, in place too, and on a fine grid") {
  for (DType dtype : kTypes)
    for (int64_t elems : sizes()) check_gelu(random_doubles(elems, dtype, 11, 2.0), dtype);
  Doubles grid;
  for (int i = -1600; i <= 1600; ++i) grid.push_back(i / 256.0);
  check_gelu(grid, DType::f32);
}

TEST_CASE("gelu: large inputs give 0 or the input, with slopes 0 or 1; NaN stays NaN") {
  const Doubles far = {-3e38, -1e20, -100, -30, 30, 100, 1e20, 3e38, NAN};
  for_machines([&](LaunchContext& context) {
    const OnDevice x(far, DType::f32, "x"), dy(Doubles(9, 1.0), DType::f32, "dy"), dx(9, DType::f32, "dx"),
        y(9, DType::f32, "y");
    gelu_backward(context, {dy.data(), x.data(), dx.data(), 9, DType::f32});
    gelu_forward(context, {x.data(), y.data(), 9, DType::f32});
    const Doubles slopes = dx.doubles(), values = y.doubles(), in = x.doubles();
    for (size_t i = 0; i < 8; ++i) {
      // The GPU's kernel squares x, which is infinite beyond 1.8e19; its slope is NaN there.
      if (on_cpu() || std::abs(far[i]) < 1e19) CHECK(std::abs(slopes[i] - (far[i] > 0 ? 1.0 : 0.0)) < 1e-30);
      CHECK(std::abs(values[i] - (far[i] > 0 ? in[i] : 0.0)) < 1e-30);
    }
    CHECK((std::isnan(slopes[8]) && std::isnan(values[8])));
  });
}

TEST_CASE("gelu: impossible operands are refused, costs equal the formula in the header", "[.][cpu]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  CHECK_THROWS_WITH(gelu_forward(context, {nullptr, nullptr, -1, DType::f32}),
                    "[gelu_forward] elems is -1, need at least 0.");
  CHECK_THROWS_AS(gelu_backward(context, {nullptr, nullptr, nullptr, 1, DType::f32}), ShapeError);
  CHECK_NOTHROW(gelu_forward(context, {nullptr, nullptr, 0, DType::f32}));
  CHECK(gelu_forward_cost({nullptr, nullptr, 7, DType::bf16}).bytes == 28);
  CHECK(gelu_backward_cost({nullptr, nullptr, nullptr, 7, DType::f32}).bytes == 84);
}

TEST_CASE("swiglu: the reference's derivative is its central difference", "[.][cpu]") {
  const Doubles x = random_doubles(50, DType::f32, 9, 2.0);
  Doubles derivative;
  for (double value : x) derivative.push_back(reference::silu_derivative(value));
  const auto loss = [](const Doubles& v) {
    double total = 0;
    for (double value : v) total += reference::silu(value);
    return total;
  };
  CHECK(error_of(central_differences(loss, x), derivative) < 1e-6);
}

TEST_CASE("swiglu and its gradient equal double at any shape, in place too") {
  std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 1}, {3, 7}, {5, 8}, {2, 9}, {67, 32}, {3, 1030}};
  if (on_cpu())
    for (int64_t width : {1, 3, 7, 8, 9, 16, 17, 33, 4099}) shapes.insert(shapes.end(), {{1, width}, {5, width}});
  for (DType dtype : kTypes)
    for (const auto& [rows, width] : shapes) {
      CAPTURE(rows, width, name_of(dtype));
      const Doubles x = random_doubles(rows * 2 * width, dtype, 1, 2.0), dy = random_doubles(rows * width, dtype, 2);
      Doubles y(dy.size()), dx(x.size());
      for (size_t r = 0, w = static_cast<size_t>(width); r < static_cast<size_t>(rows); ++r)
        for (size_t i = 0; i < w; ++i) {
          const double gate = x[r * 2 * w + i], up = x[r * 2 * w + w + i], d = dy[r * w + i];
          y[r * w + i] = reference::silu(gate) * up;
          dx[r * 2 * w + i] = d * up * reference::silu_derivative(gate);
          dx[r * 2 * w + w + i] = d * reference::silu(gate);
        }
      for_machines([&](LaunchContext& context) {
        OnDevice in(x, dtype, "gate_up"), d(dy, dtype, "dy"), out(rows * width, dtype, "y"),
            apart(rows * 2 * width, dtype, "dx");
        swiglu_forward(context, {in.data(), out.data(), rows, width, dtype});
        CHECK(error_of(out.doubles(), y) < forward_tolerance(dtype, 1));  // catches up before gate
        swiglu_backward(context, {d.data(), in.data(), apart.data(), rows, width, dtype});
        CHECK(error_of(apart.doubles(), dx) < gradient_tolerance(dtype, 1));  // catches a lost 1 + g (1 - s)
        swiglu_backward(context, {d.data(), in.data(), in.data(), rows, width, dtype});
        CHECK(in.bytes() == apart.bytes());
        CHECK((in.intact() && out.intact() && apart.intact()));
      });
    }
}

TEST_CASE("swiglu: impossible operands are refused, costs equal the formula in the header", "[.][cpu]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  CHECK_THROWS_WITH(swiglu_forward(context, {nullptr, nullptr, 1, 0, DType::f32}),
                    "[swiglu_forward] width is 0, need at least 1.");
  CHECK_THROWS_AS(swiglu_backward(context, {nullptr, nullptr, nullptr, 1, 1, DType::f32}), ShapeError);
  CHECK(swiglu_forward_cost({nullptr, nullptr, 3, 5, DType::bf16}).bytes == 90);
  CHECK(swiglu_backward_cost({nullptr, nullptr, nullptr, 3, 5, DType::f32}).bytes == 300);
}

TEST_CASE("rope: the reference's inverse is the derivative of its turn, by central differences", "[.][cpu]") {
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

TEST_CASE("rope: turns by the angle of the position and back, and elements between rows stay") {
  struct Shape {
    int64_t batch, tokens, heads, head_dim, stride, offset;
  };
  std::vector<Shape> shapes = {{1, 1, 1, 2, 2, 0}, {2, 3, 2, 6, 13, 1}, {2, 5, 3, 16, 48, 2}, {1, 9, 2, 64, 192, 0}};
  if (on_cpu()) {
    for (int64_t head_dim : {2, 6, 8, 14, 16, 18, 20, 32, 34, 64, 80, 128})
      shapes.push_back({1, 7, 2, head_dim, 2 * head_dim, 0});
    shapes.insert(shapes.end(), {{3, 17, 3, 16, 53, 0}, {2, 5, 1, 8, 8, 1000}, {1, 1, 1, 2, 3, 1}});
  }
  for (DType dtype : kTypes)
    for (const Shape& s : shapes)
      for (float theta : {100.0f, kTheta}) {
        CAPTURE(s.batch, s.tokens, s.heads, s.head_dim, s.stride, s.offset, theta, name_of(dtype));
        const Doubles x = random_doubles(s.batch * s.tokens * s.stride, dtype, 5);
        Tensor table((s.tokens + s.offset) * s.head_dim, DType::f32);
        rope_table(table.data<float>(), s.tokens + s.offset, s.head_dim, theta);
        CHECK(table.guard_intact());
        const OnDevice angles(table.doubles(), DType::f32, "table");
        for (bool inverse : {false, true}) {
          Doubles want = x;
          for (int64_t row = 0; row < s.batch * s.tokens; ++row)
            for (int64_t h = 0; h < s.heads; ++h) {
              const auto at = want.begin() + row * s.stride + h * s.head_dim;
              Doubles head(at, at + s.head_dim);
              reference::rotate(head, row % s.tokens + s.offset, static_cast<double>(theta), inverse);
              std::copy(head.begin(), head.end(), at);
            }
          for_machines([&](LaunchContext& context) {
            const OnDevice turned(x, dtype, "x");
            Rope args = {turned.data(), s.batch,  s.tokens, s.heads, s.head_dim,          s.stride,
                         theta,         s.offset, inverse,  dtype,   angles.data<float>()};
            rope(context, args);
            // Detects neighbours as pairs, a position off by one and a lost sign.
            CHECK(error_of(turned.doubles(), want) < forward_tolerance(dtype, 2));
            args.inverse = !inverse;
            rope(context, args);
            CHECK(error_of(turned.doubles(), x) < forward_tolerance(dtype, 2, 2));  // two roundings
            CHECK(turned.intact());
          });
        }
      }
}

TEST_CASE("rope: llama3 scaling is the published rule", "[.][cpu]") {
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

TEST_CASE("rope: impossible operands are refused, the cost equals the formula in the header", "[.][cpu]") {
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
