// SPDX-License-Identifier: Apache-2.0
// Attention with heads of 64 and 128 against outputs and gradients that PyTorch computed once
// (tests/golden/make_golden_attention.py), on both paths for tensor cores.

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "engine/base/json.h"
#include "kernels/attention/attention.h"
#include "tests/kernels/common/backend.h"
#include "tests/paths.h"
#include "tests/reference/packed_attention.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

std::string bytes_of_golden(const std::string& name) {
  std::ifstream file(golden_dir() + "/" + name, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The inputs of the fixture: odd multiples of 1/128 between -2 and 2, exact in bf16.
Doubles formula(int64_t count, uint32_t seed) {
  Doubles values;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t n = (static_cast<uint32_t>(i) + 1 + (seed << 24)) * 0x9E3779B1u;
    n = (n ^ n >> 15) * 0x85EBCA77u;
    n ^= n >> 13;
    values.push_back((2.0 * (n >> 24) - 255) / 128);
  }
  return values;
}

struct Golden {
  int64_t tokens, heads, kv_heads, head_dim;
  uint32_t seed;
  Doubles out, dqkv;

  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t out_width() const { return heads * head_dim; }
};

std::vector<Golden> golden_cases() {
  const std::string data = bytes_of_golden("attention.bin");
  const Json json = Json::parse(bytes_of_golden("attention.json"));
  std::vector<Golden> cases;
  for (const Json& row : json.at("cases").as_array()) {
    const auto whole = [&](const char* key) { return row.at(key).as_int(); };
    Golden g{whole("tokens"),
             whole("heads"),
             whole("kv_heads"),
             whole("head_dim"),
             static_cast<uint32_t>(whole("seed")),
             {},
             {}};
    size_t at = 2 * static_cast<size_t>(whole("begin_elems"));
    const auto take = [&](int64_t elems) {
      Tensor values(elems, DType::bf16);
      const auto size_bytes = static_cast<size_t>(bytes_of(elems, DType::bf16));
      REQUIRE(at + size_bytes <= data.size());
      std::memcpy(values.data(), data.data() + at, size_bytes);
      at += size_bytes;
      return values.doubles();
    };
    g.out = take(g.tokens * g.out_width());
    g.dqkv = take(g.tokens * g.width());
    cases.push_back(std::move(g));
  }
  return cases;
}

struct Errors {
  double out, q, k, v;  // of the largest element each
};

Errors errors_of(const Golden& g, float scale) {
  const int64_t width = g.width(), at_k = g.out_width(), at_v = at_k + g.kv_heads * g.head_dim;
  LaunchContext context = a_context();
  OnDevice x(formula(g.tokens * width, g.seed), DType::bf16, "qkv"),
      dout(formula(g.tokens * g.out_width(), g.seed + 1), DType::bf16, "dout"),
      out(g.tokens * g.out_width(), DType::bf16, "out"), dqkv(g.tokens * width, DType::bf16, "dqkv"),
      lse(g.tokens * g.heads, DType::f32, "lse");
  attention_forward(context, {x.data(), x.data(at_k), x.data(at_v), out.data(), lse.data<float>(), 1, g.tokens, g.heads,
                              g.kv_heads, g.head_dim, width, width, g.out_width(), scale, DType::bf16});
  AttentionBackward backward = {.dout = dout.data(),
                                .q = x.data(),
                                .k = x.data(at_k),
                                .v = x.data(at_v),
                                .out = out.data(),
                                .lse = lse.data<float>(),
                                .dq = dqkv.data(),
                                .dk = dqkv.data(at_k),
                                .dv = dqkv.data(at_v),
                                .batch = 1,
                                .tokens = g.tokens,
                                .heads = g.heads,
                                .kv_heads = g.kv_heads,
                                .head_dim = g.head_dim,
                                .q_stride = width,
                                .kv_stride = width,
                                .out_stride = g.out_width(),
                                .dq_stride = width,
                                .dkv_stride = width,
                                .scale = scale,
                                .dtype = DType::bf16};
  OnDevice workspace(attention_backward_workspace_elems(backward), DType::f32, "workspace");
  backward.workspace = workspace.data<float>();
  attention_backward(context, backward);
  const Doubles got = dqkv.doubles();
  const auto error = [&](int64_t begin, int64_t end) {
    return error_of(reference::columns(got, width, begin, end), reference::columns(g.dqkv, width, begin, end));
  };
  return {error_of(out.doubles(), g.out), error(0, at_k), error(at_k, at_v), error(at_v, width)};
}

/// bf16: weights and slopes are rounded before they are multiplied, out before dout . out, and the result; so are the
/// golden values.
constexpr double kOut = 0x1p-7, kGradients = 0x1p-6;

void check_all() {
  for (const Golden& g : golden_cases()) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(g.head_dim));
    const Errors errors = errors_of(g, scale);
    CAPTURE(g.head_dim, errors.out, errors.q, errors.k, errors.v);
    CHECK(errors.out < kOut);
    CHECK(std::max({errors.q, errors.k, errors.v}) < kGradients);
    const Errors wrong = errors_of(g, 1.5f * scale);
    CHECK(wrong.out > kOut);
    CHECK(std::min({wrong.q, wrong.k, wrong.v}) > kGradients);
  }
}

}  // namespace

TEST_CASE("attention equals PyTorch: heads of 64 and 128, mma.sync") {
  if (on_gpu()) return;  // takes the path of its GPU
  check_all();
}

TEST_CASE("attention equals PyTorch: heads of 64 and 128, sm_90a") {
  const emulation::Capability hopper(90);
  check_all();
  if (!on_gpu()) CHECK(attention_fallbacks().empty());
}
