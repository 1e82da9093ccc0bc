// SPDX-License-Identifier: Apache-2.0
// Encoding for the wire: bounds on rounding errors, laws of blocks and residuals, and sums in rank order.

#include "kernels/wire/wire.h"

#include "engine/base/check.h"
#include "tests/kernels/common/backend.h"
#include "tests/kernels/common/cases.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

/// All sizes around a block, with and without a partial last one.
const std::vector<int64_t> kSizes = {16, 112, 128, 144, 256, 128 * 70 + 16};

/// Blocks of very different magnitudes, so that the scale of a wrong block shows.
std::vector<float> values(int64_t elems, int64_t parts, const std::string& name) {
  std::vector<float> x = random<float>(elems * parts, name);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0f, static_cast<int>(i / 16 % 23) - 11);
  return x;
}

std::vector<std::byte> wire_of(int64_t elems, int64_t parts, Format wire) {
  return std::vector<std::byte>(static_cast<size_t>(parts * encoded_bytes(elems, wire)) + 1, std::byte{0x5a});
}

float largest_of_block(const std::vector<float>& x, size_t i, int64_t elems) {
  const size_t part = i / static_cast<size_t>(elems) * static_cast<size_t>(elems),
               begin = part + (i - part) / int64_t{kInt8.block_elems} * int64_t{kInt8.block_elems};
  const size_t end = std::min(begin + int64_t{kInt8.block_elems}, part + static_cast<size_t>(elems));
  float largest = 0;
  for (size_t j = begin; j < end; ++j) largest = std::max(largest, std::abs(x[j]));
  return largest;
}

}  // namespace

TEST_CASE("wire: decoded values equal the encoded ones within the error bound in the header", "[.][cpu]") {
  for (Format wire : {Format(DType::bf16), kInt8})
    for (int64_t elems : kSizes)
      for (int64_t parts : {1, 3}) {
        const std::vector<float> x = values(elems, parts, "x");
        std::vector<std::byte> first;
        for_machines([&](LaunchContext& context) {
          std::vector<std::byte> bytes = wire_of(elems, parts, wire);
          std::vector<float> back(x.size());
          encode(context, {x.data(), nullptr, bytes.data(), elems, parts, wire});
          decode(context, {bytes.data(), back.data(), elems, parts, wire, DType::f32});
          int64_t wrong = 0, exact = 0;
          for (size_t i = 0; i < x.size(); ++i) {
            const double bound =
                wire == DType::bf16 ? std::abs(x[i]) * 0x1p-8 : largest_of_block(x, i, elems) * (1.0 / 254 + 1e-6);
            wrong += !(std::abs(static_cast<double>(back[i]) - static_cast<double>(x[i])) <= bound);
            exact += back[i] == x[i];
          }
          CHECK(wrong == 0);
          CHECK(exact < static_cast<int64_t>(x.size()));  // it did round
          CHECK(bytes.back() == std::byte{0x5a});
          // The same bytes on every instruction set and number of threads (except for the padding, which has no value).
          if (first.empty()) first = bytes;
          CHECK(bytes == first);
          std::vector<bfloat16> rounded(x.size());
          decode(context, {bytes.data(), rounded.data(), elems, parts, wire, DType::bf16});
          for (size_t i = 0; i < x.size(); ++i) wrong += rounded[i].bits != bfloat16(back[i]).bits;
          CHECK(wrong == 0);
        });
      }
}

TEST_CASE("wire: a part is encoded as if it were alone, and sums are made in the order of parts", "[.][cpu]") {
  for (Format wire : {Format(DType::bf16), kInt8})
    for (int64_t elems : kSizes) {
      constexpr int64_t kParts = 4;
      const std::vector<float> x = values(elems, kParts, "x");
      for_machines([&](LaunchContext& context) {
        std::vector<std::byte> together = wire_of(elems, kParts, wire);
        std::vector<float> sum(static_cast<size_t>(elems)), back(x.size());
        encode(context, {x.data(), nullptr, together.data(), elems, kParts, wire});
        sum_parts(context, {together.data(), sum.data(), elems, kParts, wire});
        decode(context, {together.data(), back.data(), elems, kParts, wire, DType::f32});
        const int64_t part_bytes = encoded_bytes(elems, wire);
        for (int64_t p = 0; p < kParts; ++p) {
          std::vector<std::byte> alone = wire_of(elems, 1, wire);
          encode(context, {x.data() + p * elems, nullptr, alone.data(), elems, 1, wire});
          CHECK(std::memcmp(alone.data(), together.data() + p * part_bytes,
                            static_cast<size_t>(wire == kInt8 ? elems + 4 * ceil_div(elems, int64_t{kInt8.block_elems})
                                                              : part_bytes)) == 0);
        }
        int64_t wrong = 0, other_order = 0;
        for (int64_t i = 0; i < elems; ++i) {
          float forward = back[static_cast<size_t>(i)], backward = back[static_cast<size_t>((kParts - 1) * elems + i)];
          for (int64_t p = 1; p < kParts; ++p)
            forward += back[static_cast<size_t>(p * elems + i)],
                backward += back[static_cast<size_t>((kParts - 1 - p) * elems + i)];
          const float got = sum[static_cast<size_t>(i)];
          // A product and a sum may be one instruction: then they are rounded once.
          wrong += wire == DType::bf16
                       ? got != forward
                       : std::abs(got - forward) >
                             1e-6f * (std::abs(forward) + largest_of_block(x, static_cast<size_t>(i), elems));
          other_order += got != backward;
        }
        CHECK(wrong == 0);
        CHECK((elems < 100 || other_order > 0));
      });
    }
}

TEST_CASE("wire: error feedback: decoded values and the residual add up to the sum of all steps", "[.][cpu]") {
  constexpr int64_t kElems = 256;
  constexpr int kSteps = 64;
  // A large value next to small ones: alone, the small ones would be rounded to zero in every step.
  std::vector<float> x(kElems, 1e-3f);
  x[0] = x[128] = 1.0f;
  for_machines([&](LaunchContext& context) {
    for (bool feeds_back : {true, false}) {
      std::vector<float> residual(kElems, 0.0f), back(kElems);
      std::vector<double> total(kElems, 0.0);
      std::vector<std::byte> bytes = wire_of(kElems, 1, kInt8);
      for (int step = 0; step < kSteps; ++step) {
        encode(context, {x.data(), feeds_back ? residual.data() : nullptr, bytes.data(), kElems, 1, kInt8});
        decode(context, {bytes.data(), back.data(), kElems, 1, kInt8, DType::f32});
        for (size_t i = 0; i < total.size(); ++i) total[i] += static_cast<double>(back[i]);
      }
      // sum of x = sum of decoded + residual: telescoping, whatever the rounding.
      for (size_t i = 0; i < total.size(); ++i) {
        const double want = kSteps * static_cast<double>(x[i]);
        if (feeds_back)
          CHECK(std::abs(total[i] + static_cast<double>(residual[i]) - want) < 1e-5 * kSteps);
        else
          CHECK(total[i] == (i % 128 == 0 ? kSteps : 0.0));
      }
      if (feeds_back) CHECK(std::abs(total[1] - kSteps * 1e-3) < 1.0 / 127);
    }
  });
}

TEST_CASE("wire: error feedback: a block that is not finite leaves no residual, so that the next step is finite",
          "[.][cpu]") {
  for_machines([&](LaunchContext& context) {
    for (float odd : {INFINITY, -INFINITY, NAN}) {
      std::vector<float> x(256, 0.3f), residual(256, 0.25f), back(256);
      x[131] = odd;
      std::vector<std::byte> bytes = wire_of(256, 1, kInt8);
      const auto encode_and_decode = [&] {
        encode(context, {x.data(), residual.data(), bytes.data(), 256, 1, kInt8});
        decode(context, {bytes.data(), back.data(), 256, 1, kInt8, DType::f32});
      };
      encode_and_decode();
      CHECK(std::isnan(back[131]));
      for (size_t i = 128; i < 256; ++i) CHECK(residual[i] == 0.0f);
      x[131] = 0.3f;
      encode_and_decode();
      for (size_t i = 128; i < 256; ++i) CHECK(std::abs(back[i] - 0.3f) < 1e-6f);
    }
  });
}

TEST_CASE(
    "wire: zeros stay zeros, the smallest values become zero, non-finite values NaN, and the rest of their block zero",
    "[.][cpu]") {
  for_machines([&](LaunchContext& context) {
    for (float odd : {0.0f, 1e-40f, 1e-31f, INFINITY, -INFINITY, NAN}) {
      std::vector<float> x(256, odd == 0.0f || std::abs(odd) < 1e-20f ? 0.0f : 1.0f), back(256);
      x[131] = odd;
      std::vector<std::byte> bytes = wire_of(256, 1, kInt8);
      encode(context, {x.data(), nullptr, bytes.data(), 256, 1, kInt8});
      decode(context, {bytes.data(), back.data(), 256, 1, kInt8, DType::f32});
      for (size_t i = 0; i < 128; ++i) CHECK(back[i] == x[i]);  // the other block
      for (size_t i = 128; i < 256; ++i)
        CHECK((std::isfinite(odd) || i != 131 ? back[i] == 0.0f : std::isnan(back[i])));
    }
  });
}

TEST_CASE("wire: operands that cannot be encoded are refused with their numbers", "[.][cpu]") {
  LaunchContext context = context_of(1);
  std::vector<float> x(32);
  std::vector<std::byte> bytes(256);
  const auto refusal = [&](const auto& action) -> std::string {
    try {
      action();
    } catch (const ShapeError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal([&] {
          encode(context, {x.data(), nullptr, bytes.data(), 20, 1, kInt8});
        }) == "[encode] elems 20 is not a multiple of 16. Pad the part.");
  CHECK(refusal([&] {
          decode(context, {bytes.data(), x.data(), 16, 1, DType::f32, DType::f32});
        }) == "[decode] wire type float32 needs no encoding, need bfloat16 or int8.");
  CHECK(refusal([&] {
          encode(context, {x.data(), x.data(), bytes.data(), 16, 1, DType::bf16});
        }).find("a residual needs int8") != std::string::npos);
  CHECK(refusal([&] { sum_parts(context, {nullptr, x.data(), 16, 2, kInt8}); }).find("[sum_parts]") == 0);
}

TEST_CASE("wire: a block that is not finite leaves no residual", "[cuda]") {
  for (const double odd : {static_cast<double>(INFINITY), static_cast<double>(NAN)})
    for_machines([&](LaunchContext& context) {
      Doubles x(256, 0.5);
      x[131] = odd;
      OnDevice from(x, DType::f32, "from"), to(encoded_bytes(256, kInt8), DType::u8, "to"),
          residual(Doubles(256, 0.25), DType::f32, "residual");
      encode(context, {from.data<float>(), residual.data<float>(), to.data(), 256, 1, kInt8});
      const Doubles left = residual.doubles();
      for (size_t i = 128; i < 256; ++i) CHECK(left[i] == 0.0);
      for (size_t i = 0; i < 128; ++i) CHECK(std::abs(left[i]) < 0.01);
    });
}

TEST_CASE("wire: encode, decode and sums are those of the CPU, with a residual too", "[cuda]") {
  for (Format wire : {Format(DType::bf16), kInt8})
    for (int64_t elems : {16, 112, 128, 144, 1040})
      for (int64_t parts : {1, 3}) {
        CAPTURE(elems, parts, name_of(wire));
        const Doubles x = random_doubles(elems * parts, DType::f32, 1);
        const int64_t size = parts * encoded_bytes(elems, wire),
                      used = wire == kInt8 && parts == 1 ? elems + 4 * ceil_div(elems, int64_t{kInt8.block_elems}) : 0;
        for_machines([&](LaunchContext& context) {
          OnDevice from(x, DType::f32, "from"), to(size, DType::u8, "to"), residual(x, DType::f32, "residual"),
              back(elems * parts, DType::f32, "back"), sum(elems, DType::f32, "sum");
          Tensor host_from(x, DType::f32), host_residual(x, DType::f32), host_back(elems * parts, DType::f32),
              host_sum(elems, DType::f32);
          std::vector<uint8_t> host(static_cast<size_t>(size));
          const bool keeps = wire == kInt8;
          LaunchContext cpu = context_of(1);
          encode(context,
                 {from.data<float>(), keeps ? residual.data<float>() : nullptr, to.data(), elems, parts, wire});
          encode(cpu,
                 {reinterpret_cast<float*>(host_from.data()),
                  keeps ? reinterpret_cast<float*>(host_residual.data()) : nullptr, host.data(), elems, parts, wire});
          const std::vector<uint8_t> got = to.bytes();
          if (used > 0 || !keeps) CHECK(std::equal(host.begin(), host.begin() + (used > 0 ? used : size), got.begin()));
          decode(context, {to.data(), back.data(), elems, parts, wire, DType::f32});
          decode(cpu, {host.data(), host_back.data(), elems, parts, wire, DType::f32});
          CHECK(back.doubles() == host_back.doubles());
          sum_parts(context, {to.data(), sum.data<float>(), elems, parts, wire});
          sum_parts(cpu, {host.data(), reinterpret_cast<float*>(host_sum.data()), elems, parts, wire});
          const Doubles a = sum.doubles(), b = host_sum.doubles();
          for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= 1e-6);
          const Doubles c = residual.doubles(), d = host_residual.doubles();
          for (size_t i = 0; i < c.size(); ++i)
            CHECK(std::abs(c[i] - d[i]) <=
                  3e-7);  // of values up to 2, where a product and a difference may be one instruction
          CHECK((to.intact() && back.intact() && sum.intact() && residual.intact()));
        });
      }
}
