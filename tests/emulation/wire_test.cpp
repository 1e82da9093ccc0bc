// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding on the emulated device against the CPU: the same bytes, the same values.

#include "kernels/wire/wire.h"
#include "tests/emulation/on_device.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

LaunchContext host_context() {
  static ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  return context;
}

}  // namespace

TEST_CASE("wire: a block that is not finite leaves no residual") {
  for (const double odd : {static_cast<double>(INFINITY), static_cast<double>(NAN)})
    for_orders([&](LaunchContext& context) {
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

TEST_CASE("wire: encode, decode and sums are those of the CPU, with a residual too") {
  for (Format wire : {Format(DType::bf16), kInt8})
    for (int64_t elems : {16, 112, 128, 144, 1040})
      for (int64_t parts : {1, 3}) {
        CAPTURE(elems, parts, name_of(wire));
        const Doubles x = random_doubles(elems * parts, DType::f32, 1);
        const int64_t size = parts * encoded_bytes(elems, wire),
                      used = wire == kInt8 && parts == 1 ? elems + 4 * ceil_div(elems, int64_t{kInt8.block_elems}) : 0;
        for_orders([&](LaunchContext& context) {
          OnDevice from(x, DType::f32, "from"), to(size, DType::u8, "to"), residual(x, DType::f32, "residual"),
              back(elems * parts, DType::f32, "back"), sum(elems, DType::f32, "sum");
          Tensor host_from(x, DType::f32), host_residual(x, DType::f32), host_back(elems * parts, DType::f32),
              host_sum(elems, DType::f32);
          std::vector<uint8_t> host(static_cast<size_t>(size));
          const bool keeps = wire == kInt8;
          LaunchContext cpu = host_context();
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
