// SPDX-License-Identifier: Apache-2.0
// The router's product on the CPU: threads share the tokens, or for the gradient of the weight the width.

#include "kernels/common/vectors.h"
#include "kernels/experts/router_linear.h"
#include "kernels/matmul/matmul_cpu.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

// Tokens and columns are split by multiples of this, so that vector registers are full.
constexpr int64_t kUnit = 16;
// Below this many multiplications, waking a thread costs more than it saves.
constexpr int64_t kMinWork = 1 << 17;
// The blocks of products with widened bfloat16 operands: float copies and sums stay in the second level of cache.
constexpr int64_t kBlockTokens = 128;
constexpr int64_t kBlockColumns = 512;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// Calls body(first, number) on parts of `count`, of which each index stands for `work` multiplications.
template <typename Body>
void for_units(LaunchContext& context, int64_t count, int64_t work, const Body& body) {
  context.parallel_for((count + kUnit - 1) / kUnit, 1 + kMinWork / (kUnit * work), [&](int64_t begin, int64_t end) {
    body(begin * kUnit, smaller(count, end * kUnit) - begin * kUnit);
  });
}

/// to = from, rounded to bfloat16 or widened; with `add`, the old value of `to` is added first.
template <typename From, typename To>
void convert_row(const From* from, To* to, int64_t elems, bool add = false) {
  if (add)
    for_vectors(0, elems,
                [&](auto lanes, int64_t i) { lanes.store(to + i, lanes.load(to + i) + lanes.load(from + i)); });
  else
    for_vectors(0, elems, [&](auto lanes, int64_t i) { lanes.store(to + i, lanes.load(from + i)); });
}

void backward_input_bf16(const RouterLinearBackwardInput& args, int64_t token, int64_t tokens) {
  const int64_t width = args.width, columns = smaller(width, kBlockColumns);
  const auto* weight = static_cast<const bfloat16*>(args.weight);
  auto* dx = static_cast<bfloat16*>(args.dx) + token * width;
  float* wide = product_scratch(Scratch::a, args.experts * columns);
  float* sums = product_scratch(Scratch::c, smaller(tokens, kBlockTokens) * columns);
  for (int64_t n0 = 0; n0 < width; n0 += columns) {
    const int64_t n = smaller(columns, width - n0);
    for (int64_t e = 0; e < args.experts; ++e) convert_row(weight + e * width + n0, wide + e * n, n);
    for (int64_t m0 = 0; m0 < tokens; m0 += kBlockTokens) {
      const int64_t m = smaller(kBlockTokens, tokens - m0);
      product_f32({.a = args.dlogits + (token + m0) * args.experts,
                   .a_stride = args.experts,
                   .b = wide,
                   .b_stride = n,
                   .c = sums,
                   .c_stride = n,
                   .m = m,
                   .n = n,
                   .k = args.experts});
      for (int64_t r = 0; r < m; ++r) convert_row(sums + r * n, dx + (m0 + r) * width + n0, n, args.accumulate);
    }
  }
}

void backward_weight_bf16(const RouterLinearBackwardWeight& args, int64_t column, int64_t columns) {
  const auto* x = static_cast<const bfloat16*>(args.x) + column;
  float* wide = product_scratch(Scratch::b, smaller(args.tokens, kBlockTokens) * columns);
  for (int64_t k0 = 0; k0 < args.tokens; k0 += kBlockTokens) {
    const int64_t k = smaller(kBlockTokens, args.tokens - k0);
    for (int64_t r = 0; r < k; ++r) convert_row(x + (k0 + r) * args.width, wide + r * columns, columns);
    product_f32({.a = args.dlogits + k0 * args.experts,
                 .a_stride = args.experts,
                 .a_transposed = true,
                 .b = wide,
                 .b_stride = columns,
                 .c = args.dweight + column,
                 .c_stride = args.width,
                 .m = args.experts,
                 .n = columns,
                 .k = k,
                 .accumulate = args.accumulate || k0 > 0});
  }
}

}  // namespace

void router_linear_cpu(LaunchContext& context, const RouterLinear& args) {
  for_units(context, args.tokens, args.width * args.experts, [&](int64_t token, int64_t tokens) {
    product_tile_cpu({.a = static_cast<const std::byte*>(args.x) + bytes_of(token * args.width, args.dtype),
                      .a_stride = args.width,
                      .b = args.weight,
                      .b_stride = args.width,
                      .b_transposed = true,
                      .c = args.logits + token * args.experts,
                      .c_stride = args.experts,
                      .m = tokens,
                      .n = args.experts,
                      .k = args.width},
                     args.dtype);
  });
}

void router_linear_backward_input_cpu(LaunchContext& context, const RouterLinearBackwardInput& args) {
  for_units(context, args.tokens, args.width * args.experts, [&](int64_t token, int64_t tokens) {
    if (args.dtype == DType::bf16) return backward_input_bf16(args, token, tokens);
    product_f32({.a = args.dlogits + token * args.experts,
                 .a_stride = args.experts,
                 .b = args.weight,
                 .b_stride = args.width,
                 .c = static_cast<float*>(args.dx) + token * args.width,
                 .c_stride = args.width,
                 .m = tokens,
                 .n = args.width,
                 .k = args.experts,
                 .accumulate = args.accumulate});
  });
}

void router_linear_backward_weight_cpu(LaunchContext& context, const RouterLinearBackwardWeight& args) {
  if (args.tokens == 0) {
    std::memset(args.dweight, 0, static_cast<size_t>(bytes_of(args.experts * args.width, DType::f32)));
    return;
  }
  for_units(context, args.width, args.tokens * args.experts, [&](int64_t column, int64_t columns) {
    if (args.dtype == DType::bf16) return backward_weight_bf16(args, column, columns);
    product_f32({.a = args.dlogits,
                 .a_stride = args.experts,
                 .a_transposed = true,
                 .b = static_cast<const float*>(args.x) + column,
                 .b_stride = args.width,
                 .c = args.dweight + column,
                 .c_stride = args.width,
                 .m = args.experts,
                 .n = columns,
                 .k = args.tokens,
                 .accumulate = args.accumulate});
  });
}

}  // namespace slipstream::kernels::SLIP_ISA
