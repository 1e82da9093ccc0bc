// SPDX-License-Identifier: Apache-2.0
// Conversions, sums, activations and the rotary embedding on the emulated device against double.

#include "tests/reference/elementwise.h"
#include "kernels/cast/cast.h"
#include "kernels/dropout/dropout.h"
#include "kernels/gelu/gelu.h"
#include "kernels/residual/residual.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/emulation/on_device.h"
#include "tests/reference/activations.h"
#include "tests/reference/dropout.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

// Around a pack of either type, and around a block of threads of packs.
const std::vector<int64_t> kSizes = {1, 3, 4, 5, 7, 8, 9, 1023, 1024, 1025, 2049};
constexpr DType kTypes[] = {DType::f32, DType::bf16};

constexpr int significant_bits(DType dtype) {
  return dtype == DType::f32 ? reference::kFloatBits : reference::kBfloat16Bits;
}
Doubles rounded(Doubles x, DType dtype) {
  for (double& value : x) value = reference::rounded(value, significant_bits(dtype));
  return x;
}

}  // namespace

TEST_CASE("cast: both types to both types round once, aligned or not") {
  for (DType from : kTypes)
    for (DType to : kTypes)
      for (int64_t elems : kSizes)
        for (int64_t shift : {0, 1}) {
          CAPTURE(elems, shift, name_of(from), name_of(to));
          const Doubles x = random_doubles(elems, from, 1);
          for_orders([&](LaunchContext& context) {
            OnDevice in(x, from, "from", shift), out(elems, to, "to", shift);
            cast(context, {in.data(), out.data(), elems, from, to});
            CHECK(out.doubles() == rounded(x, to));
            CHECK((in.intact() && out.intact()));
          });
        }
}

TEST_CASE("cast: ties go to even, NaN stays NaN, infinities stay") {
  const Doubles x = {1.00390625, 1.01171875, -1.00390625, NAN, INFINITY, -INFINITY, 3.4e38, 1e-41};
  LaunchContext context = cuda_context();
  OnDevice in(x, DType::f32, "from"), out(8, DType::bf16, "to");
  cast(context, {in.data(), out.data(), 8, DType::f32, DType::bf16});
  const Doubles got = out.doubles(), want = rounded(in.doubles(), DType::bf16);
  for (size_t i = 0; i < x.size(); ++i) CHECK((got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))));
}

TEST_CASE("add and residual: sums, in place too") {
  for (int64_t elems : kSizes)
    for (int64_t shift : {0, 1})
      for (DType dtype : kTypes) {
        CAPTURE(elems, shift, name_of(dtype));
        const Doubles a = random_doubles(elems, dtype, 1), b = random_doubles(elems, dtype, 2);
        const Doubles total = reference::sum(a, b, significant_bits(dtype));
        LaunchContext context = cuda_context();
        OnDevice left(a, dtype, "a", shift), right(b, dtype, "b"), y(elems, dtype, "y");
        residual(context, {left.data(), right.data(), y.data(), elems, dtype});
        CHECK(y.doubles() == total);
        residual(context, {left.data(), right.data(), left.data(), elems, dtype});
        CHECK(left.doubles() == total);
        CHECK((y.intact() && left.intact()));
        if (dtype == DType::bf16) continue;
        left.set(a);
        add(context, {right.data<float>(), left.data<float>(), elems});
        CHECK(left.doubles() == total);
        CHECK(left.intact());
      }
}

TEST_CASE("dropout: the bits of double, with and without a sum, in place too") {
  const ContextChunks whole{.tokens = 6}, odd{.tokens = 5}, shared{.tokens = 24, .ranks = 4, .rank = 2};
  for (int64_t width : {1, 3, 4, 7, 8, 9, 40, 260})
    for (const ContextChunks& chunks : {whole, odd, shared})
      for (int64_t shift : {0, 1})
        for (DType dtype : kTypes) {
          CAPTURE(width, chunks.tokens, shift, name_of(dtype));
          const int64_t tokens = chunks.local_tokens(), first_row = 2, rows = 2 * tokens - first_row,
                        elems = rows * width;
          const Doubles x = random_doubles(elems, dtype, 1), d = random_doubles(elems, dtype, 2);
          const uint64_t key = dropout_key(3, "place");
          Doubles sum, alone;
          for (int64_t i = 0; i < elems; ++i) {
            const int64_t row = first_row + i / width;
            const reference::Place at{key, 9, 4 + static_cast<uint32_t>(row / tokens),
                                      static_cast<uint32_t>(chunks.position(row % tokens)),
                                      static_cast<uint32_t>(i % width)};
            const auto e = static_cast<size_t>(i);
            sum.push_back(reference::dropout(at, 0.3, x[e], d[e], significant_bits(dtype)));
            alone.push_back(reference::dropout(at, 0.3, 0, d[e], significant_bits(dtype)));
          }
          for_orders([&](LaunchContext& context) {
            OnDevice left(x, dtype, "x", shift), right(d, dtype, "d", shift), y(elems, dtype, "y", shift);
            const OnDevice samples(std::vector<int32_t>{9, 4, 9, 5}, "samples");
            Dropout args{.x = left.data(),
                         .d = right.data(),
                         .y = y.data(),
                         .samples = samples.data<DropoutSample>(),
                         .rows = rows,
                         .width = width,
                         .first_row = first_row,
                         .chunks = chunks,
                         .key = key,
                         .rate = 0.3,
                         .dtype = dtype};
            dropout(context, args);
            CHECK(y.doubles() == sum);
            args.y = left.data();
            dropout(context, args);
            CHECK(left.doubles() == sum);
            args.x = nullptr;
            args.y = right.data();
            dropout(context, args);
            CHECK(right.doubles() == alone);
            CHECK((y.intact() && left.intact() && right.intact() && samples.intact()));
          });
        }
}

TEST_CASE("gelu and its gradient equal double") {
  for (DType dtype : kTypes)
    for (int64_t elems : kSizes) {
      CAPTURE(elems, name_of(dtype));
      const Doubles x = random_doubles(elems, dtype, 1, 2.0), dy = random_doubles(elems, dtype, 2);
      Doubles y = x, dx = x;
      for (size_t i = 0; i < x.size(); ++i)
        y[i] = reference::gelu(x[i]), dx[i] = dy[i] * reference::gelu_derivative(x[i]);
      for_orders([&](LaunchContext& context) {
        OnDevice in(x, dtype, "x"), d(dy, dtype, "dy"), out(elems, dtype, "y");
        gelu_forward(context, {in.data(), out.data(), elems, dtype});
        CHECK(error_of(out.doubles(), y) < forward_tolerance(dtype, 1));
        gelu_backward(context, {d.data(), in.data(), out.data(), elems, dtype});
        CHECK(error_of(out.doubles(), dx) < gradient_tolerance(dtype, 1));
        gelu_backward(context, {d.data(), in.data(), in.data(), elems, dtype});
        CHECK(in.bytes() == out.bytes());
        CHECK((in.intact() && out.intact()));
      });
    }
}

TEST_CASE("swiglu and its gradient equal double") {
  for (DType dtype : kTypes)
    for (const auto& [rows, width] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 7}, {5, 8}, {2, 9}, {67, 32}, {3, 1030}}) {
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
      for_orders([&](LaunchContext& context) {
        OnDevice in(x, dtype, "gate_up"), d(dy, dtype, "dy"), out(rows * width, dtype, "y");
        swiglu_forward(context, {in.data(), out.data(), rows, width, dtype});
        CHECK(error_of(out.doubles(), y) < forward_tolerance(dtype, 1));
        swiglu_backward(context, {d.data(), in.data(), in.data(), rows, width, dtype});
        CHECK(error_of(in.doubles(), dx) < gradient_tolerance(dtype, 1));
        CHECK((in.intact() && out.intact()));
      });
    }
}

TEST_CASE("rope turns by the angle of the position and back") {
  struct Shape {
    int64_t batch, tokens, heads, head_dim, stride, offset;
  };
  for (DType dtype : kTypes)
    for (const Shape& s :
         {Shape{1, 1, 1, 2, 2, 0}, Shape{2, 3, 2, 6, 13, 1}, Shape{2, 5, 3, 16, 48, 2}, Shape{1, 9, 2, 64, 192, 0}}) {
      CAPTURE(s.batch, s.tokens, s.heads, s.head_dim, s.stride, name_of(dtype));
      const Doubles x = random_doubles(s.batch * s.tokens * s.stride, dtype, 5);
      std::vector<float> table(static_cast<size_t>((s.tokens + s.offset) * s.head_dim));
      rope_table(table.data(), s.tokens + s.offset, s.head_dim, 100.0f);
      OnDevice angles(Doubles(table.begin(), table.end()), DType::f32, "table");
      for (bool inverse : {false, true}) {
        Doubles want = x;
        for (int64_t row = 0; row < s.batch * s.tokens; ++row)
          for (int64_t h = 0; h < s.heads; ++h) {
            const auto at = x.begin() + row * s.stride + h * s.head_dim;
            std::vector<double> head(at, at + s.head_dim);
            reference::rotate(head, row % s.tokens + s.offset, 100.0, inverse);
            std::copy(head.begin(), head.end(), want.begin() + row * s.stride + h * s.head_dim);
          }
        for_orders([&](LaunchContext& context) {
          OnDevice in(x, dtype, "x");
          rope(context, {in.data(), s.batch, s.tokens, s.heads, s.head_dim, s.stride, 100.0f, s.offset, inverse, dtype,
                         angles.data<float>()});
          CHECK(error_of(in.doubles(), want) < forward_tolerance(dtype, 2));
          CHECK(in.intact());
        });
      }
    }
}
