// SPDX-License-Identifier: Apache-2.0
// The kernels that attention takes on the emulated device: by operands, compute capability and SLIPSTREAM_ATTENTION.

#include <cstdlib>

#include "engine/base/check.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/hold/hold.h"
#include "tests/kernels/common/backend.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

TEST_CASE("attention, tensor cores: taken for bf16 heads of 64 and 128 in whole 16 bytes, and only then") {
  LaunchContext context = a_context();
  OnDevice x(Doubles(3 * 128 + 8), DType::bf16, "qkv"), out(128, DType::bf16, "out"), lse(1, DType::f32, "lse"),
      sums(Doubles(128 + 1), DType::f32, "sums"), maximum(1, DType::f32, "maximum"), sum(1, DType::f32, "sum");
  const auto taken = [&](int64_t head_dim, DType dtype, int64_t shift, int64_t stride, bool last = true,
                         int64_t sums_shift = 0) {
    return attention_forward_mma(
        context, {.all = {x.data(shift), x.data(128), x.data(256), out.data(), lse.data<float>(), 1, 1, 1, 1, head_dim,
                          stride, stride, 128, 1.0f, dtype},
                  .block = {0, 1, 0, 1},
                  .carried = {sums.data<float>(sums_shift), maximum.data<float>(), sum.data<float>()},
                  .last = last});
  };
  CHECK((taken(64, DType::bf16, 0, 384) && taken(128, DType::bf16, 0, 384)));
  CHECK_FALSE((taken(96, DType::bf16, 0, 384) || taken(64, DType::f32, 0, 384)));
  CHECK_FALSE((taken(64, DType::bf16, 1, 384) || taken(64, DType::bf16, 0, 385)));
  CHECK((taken(64, DType::bf16, 0, 384, false) && taken(128, DType::bf16, 0, 384, false)));
  CHECK_FALSE(taken(64, DType::bf16, 0, 384, false, 1));
  OnDevice samples(std::vector<int32_t>{1, 1}, "samples"), begins(std::vector<int32_t>{0}, "begins");
  const AttentionDropout dropout{.samples = samples.data<DropoutSample>(), .rate = 0.5};
  const auto taken_masked = [&](int64_t window, const int32_t* documents, const AttentionDropout* dropped,
                                const ContextChunks& keys = {}) {
    return attention_forward_mma(
        context,
        {.all = {x.data(), x.data(128), x.data(256), out.data(), lse.data<float>(), 1,       1,  1,   1, 64, 384, 384,
                 128,      1.0f,        DType::bf16, window,     documents,         dropped, {}, keys},
         .block = {0, 1, 0, 1}});
  };
  CHECK((taken_masked(1, nullptr, nullptr) && taken_masked(0, begins.data<int32_t>(), nullptr)));
  CHECK((taken_masked(0, nullptr, &dropout) && taken_masked(0, nullptr, &dropout, {.tokens = 16, .ranks = 2})));
  CHECK_FALSE(taken_masked(0, nullptr, &dropout, {.tokens = 8, .ranks = 2}));  // chunks of 2 tokens, need whole fours
  OnDevice gradients(Doubles(2 * 128 + 8), DType::f32, "gradients");
  const auto taken_backward = [&](DType dtype, int64_t shift, int64_t sums_shift, int64_t gradients_shift) {
    return attention_backward_mma(context,
                                  {.all = {x.data(),    x.data(shift),
                                           x.data(128), x.data(256),
                                           out.data(),  lse.data<float>(),
                                           nullptr,     nullptr,
                                           nullptr,     nullptr,
                                           1,           1,
                                           1,           1,
                                           128,         384,
                                           384,         128,
                                           128,         0,
                                           1.0f,        dtype},
                                   .block = {0, 1, 0, 1},
                                   .dq_sum = sums.data<float>(sums_shift),
                                   .dkv = gradients.data<float>(gradients_shift),
                                   .last = false},
                                  sum.data<float>());
  };
  CHECK(taken_backward(DType::bf16, 0, 0, 0));
  CHECK_FALSE((taken_backward(DType::f32, 0, 0, 0) || taken_backward(DType::bf16, 1, 0, 0)));
  CHECK_FALSE((taken_backward(DType::bf16, 0, 1, 0) || taken_backward(DType::bf16, 0, 0, 1)));
}

TEST_CASE("attention, sm_90a: taken for rows that TMA takes, and a refusal is noted") {
  const emulation::Capability hopper(90);
  LaunchContext context = a_context();
  OnDevice x(Doubles(3 * 128 + 8), DType::bf16, "qkv"), out(128, DType::bf16, "out"), lse(1, DType::f32, "lse"),
      sums(Doubles(128 + 1), DType::f32, "sums"), maximum(1, DType::f32, "maximum"), sum(1, DType::f32, "sum");
  const auto taken = [&](int64_t head_dim, DType dtype, int64_t shift = 0, int64_t stride = 384, bool last = true,
                         int64_t sums_shift = 0, int64_t keys = 1) {
    return attention_forward_hopper(
        context, {.all = {x.data(shift), x.data(128), x.data(256), out.data(), lse.data<float>(), 1, 1, 1, 1, head_dim,
                          stride, stride, 128, 1.0f, dtype},
                  .block = {0, 1, 0, keys, keys > 0},
                  .carried = {sums.data<float>(sums_shift), maximum.data<float>(), sum.data<float>()},
                  .last = last});
  };
  const auto noted = [](std::string_view words) {
    for (const std::string& reason : attention_fallbacks())
      if (reason.find(words) != std::string::npos) return true;
    return false;
  };
  CHECK((taken(64, DType::bf16) && taken(128, DType::bf16) && taken(64, DType::bf16, 0, 384, false)));
  CHECK_FALSE((taken(64, DType::f32) || taken(64, DType::bf16, 0, 384, true, 0, 0)));
  if (on_gpu()) return;
  CHECK(attention_fallbacks().empty());
  CHECK_FALSE(taken(96, DType::bf16));
  CHECK(noted("attention_forward: heads of 96, need 64 or 128"));
  CHECK_FALSE(taken(64, DType::bf16, 1));
  CHECK(noted("attention_forward: q: "));
  CHECK_FALSE(taken(64, DType::bf16, 0, 385));
  CHECK_FALSE(taken(64, DType::bf16, 0, 384, false, 1));
  CHECK(noted("attention_forward: the carried sums"));
  {
    const emulation::CompiledRegisters few(160);  // a multiple of 8 registers is allocated
    CHECK_THROWS_WITH(taken(128, DType::bf16),
                      "[cuda] attention forward would never end on this GPU: its 3 warpgroups exchange 504 registers a "
                      "thread in all, and the compiler launches them with 480 (160 each). Build with CUDA 13.0, "
                      "without -G and -maxrregcount, or set SLIPSTREAM_ATTENTION=mma.");
    const emulation::CompiledRegisters enough(161);
    CHECK(taken(128, DType::bf16));
  }
  emulation::set_compute_capability(80);
  CHECK_FALSE(taken(64, DType::bf16));
}

TEST_CASE("attention backward, sm_90a: taken for rows that TMA takes, and a refusal is noted") {
  const emulation::Capability hopper(90);
  LaunchContext context = a_context();
  OnDevice x(Doubles(3 * 128 + 8), DType::bf16, "qkv"), dq(128 + 8, DType::bf16, "dq"),
      lse(Doubles(1), DType::f32, "lse"), sums(Doubles(128 + 1), DType::f32, "sums"),
      gradients(Doubles(2 * 128 + 1), DType::f32, "gradients");
  const auto taken = [&](DType dtype, int64_t head_dim = 64, int64_t shift = 0, int64_t dq_shift = 0,
                         int64_t gradients_shift = 0, int64_t keys = 1) {
    return attention_backward_hopper(context,
                                     {.all = {.dout = x.data(),
                                              .q = x.data(shift),
                                              .k = x.data(128),
                                              .v = x.data(256),
                                              .lse = lse.data<float>(),
                                              .dq = dq.data(dq_shift),
                                              .batch = 1,
                                              .tokens = 1,
                                              .heads = 1,
                                              .kv_heads = 1,
                                              .head_dim = head_dim,
                                              .q_stride = 384,
                                              .kv_stride = 384,
                                              .out_stride = 128,
                                              .dq_stride = 128,
                                              .dtype = dtype},
                                      .block = {0, 1, 0, keys, keys > 0},
                                      .dkv = gradients.data<float>(gradients_shift)},
                                     sums.data<float>());
  };
  const auto noted = [](std::string_view words) {
    for (const std::string& reason : attention_fallbacks())
      if (reason.find(words) != std::string::npos) return true;
    return false;
  };
  CHECK((taken(DType::bf16) && taken(DType::bf16, 128)));
  CHECK_FALSE((taken(DType::f32) || taken(DType::bf16, 64, 0, 0, 0, 0)));
  if (on_gpu()) return;
  CHECK_FALSE(taken(DType::bf16, 96));
  CHECK(noted("attention_backward: heads of 96, need 64 or 128"));
  CHECK_FALSE(taken(DType::bf16, 64, 1));
  CHECK(noted("attention_backward: q: "));
  CHECK_FALSE((taken(DType::bf16, 64, 0, 1) || taken(DType::bf16, 64, 0, 0, 1)));
  CHECK(noted("attention_backward: gradients"));
  {
    const emulation::CompiledRegisters few(160);
    CHECK_THROWS_WITH(taken(DType::bf16), Catch::Contains("attention backward would never end on this GPU"));
  }
  emulation::set_compute_capability(80);
  CHECK_FALSE(taken(DType::bf16));
}

TEST_CASE("hold_blocks launches with the shared memory that the device has") {
  if (on_gpu()) return;  // the flag is in the host's memory
  OnDevice x(Doubles(2048), DType::f32, "x");
  LaunchContext context = a_context();
  const uint32_t released = 1;
  CHECK_NOTHROW(hold_blocks(
      context, {.memory = x.data<std::byte>(), .size_bytes = 8192, .release = &released, .blocks = 2, .ns = 1000}));
  CHECK_NOTHROW(await_flag(context, {.flag = &released}));
}

TEST_CASE("attention: SLIPSTREAM_ATTENTION is the first path that the dispatch tries") {
  if (on_gpu()) return;  // it has one compute capability
  constexpr int64_t kTokens = 200, kHead = 64;
  const Doubles qkv = random_doubles(kTokens * 3 * kHead, DType::bf16, 1),
                dout = random_doubles(kTokens * kHead, DType::bf16, 2);
  // The bits of forward and backward, which add in another order on every path.
  const auto bits = [&](int capability, const char* asked) {
    const emulation::Capability gpu(capability);
    if (asked) ::setenv("SLIPSTREAM_ATTENTION", asked, 1);
    LaunchContext context = a_context();
    OnDevice x(qkv, DType::bf16, "qkv"), d(dout, DType::bf16, "dout"), out(kTokens * kHead, DType::bf16, "out"),
        dqkv(kTokens * 3 * kHead, DType::bf16, "dqkv"), lse(kTokens, DType::f32, "lse");
    attention_forward(context, {x.data(), x.data(kHead), x.data(2 * kHead), out.data(), lse.data<float>(), 1, kTokens,
                                1, 1, kHead, 3 * kHead, 3 * kHead, kHead, 0.125f, DType::bf16});
    AttentionBackward args = {d.data(),
                              x.data(),
                              x.data(kHead),
                              x.data(2 * kHead),
                              out.data(),
                              lse.data<float>(),
                              dqkv.data(),
                              dqkv.data(kHead),
                              dqkv.data(2 * kHead),
                              nullptr,
                              1,
                              kTokens,
                              1,
                              1,
                              kHead,
                              3 * kHead,
                              3 * kHead,
                              kHead,
                              3 * kHead,
                              3 * kHead,
                              0.125f,
                              DType::bf16};
    OnDevice workspace(attention_backward_workspace_elems(args), DType::f32, "workspace");
    args.workspace = workspace.data<float>();
    attention_backward(context, args);
    ::unsetenv("SLIPSTREAM_ATTENTION");
    return std::pair(lse.doubles(), dqkv.doubles());
  };
  const auto differ = [](const auto& a, const auto& b) { return a.first != b.first && a.second != b.second; };
  const auto hopper = bits(90, "hopper"), mma = bits(90, "mma"), plain = bits(90, "plain");
  CHECK(bits(90, nullptr) == hopper);
  CHECK((differ(hopper, mma) && differ(mma, plain) && differ(plain, hopper)));
  for (int capability : {80, 89, 100, 120}) {
    CHECK(bits(capability, nullptr) == mma);
    CHECK(bits(capability, "plain") == plain);
    CHECK_THROWS_AS(bits(capability, "hopper"), ConfigError);
    ::unsetenv("SLIPSTREAM_ATTENTION");
  }
}
