// SPDX-License-Identifier: Apache-2.0
// Prices by shape against published measurements on H100 (ml-engineering, fast.cu, FlashAttention 3's figures) and
// against laws that hold on every card.

#include "comm/rehearse/kernel_price.h"

#include <cmath>

#include "comm/rehearse/nccl_price.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::comm;

namespace {

KernelRates h100() {
  return {.flops_per_second = 989.4e12,
          .bytes_per_second = 3e12,
          .multiprocessors = 132,
          .product_efficiency = 0.87,
          .depth_overhead = 512,
          .attention_efficiency = 0.65};
}

KernelCost product(int64_t rows, int64_t cols, int64_t depth) {
  return {.kind = KernelKind::product,
          .flops = 2 * rows * cols * depth,
          .bytes = 2 * (rows * depth + cols * depth + rows * cols),
          .rows = rows,
          .cols = cols,
          .depth = depth};
}

double teraflops(const KernelCost& kernel) {
  return 1e-12 * static_cast<double>(kernel.flops) / kernel_seconds(kernel, h100());
}

/// Causal attention of a batch of 16384 tokens and a width of 2048, as in the figures.
KernelCost attention(int64_t tokens, int64_t head_dim) {
  const int64_t count = 16384 / tokens * (2048 / head_dim);
  return {.kind = KernelKind::scores,
          .flops = 4 * count * head_dim * tokens * tokens / 2,
          .rows = tokens,
          .cols = tokens,
          .depth = head_dim,
          .count = count};
}

Fabric h200_nodes() { return {.node = {365e9, 3000}, .network = {46e9, 10000}, .reduce_bytes_per_second = 480e9}; }

/// NCCL's bus bandwidth in GB/s of a buffer of `bytes`.
double bus(Op op, const GroupSpan& span, int64_t bytes) {
  const bool sums = op == Op::all_reduce;
  const WireCost cost = nccl_cost(op, span, sums ? bytes / 2 : bytes / 2 / span.ranks, DType::bf16, h200_nodes());
  return static_cast<double>(bytes) * (sums ? 2 : 1) * (span.ranks - 1) / span.ranks /
         static_cast<double>(cost.latency_ns + cost.wire_ns);
}

}  // namespace

TEST_CASE("kernel prices: products on H100 take the published times", "[rehearse]") {
  CHECK(teraflops(product(8192, 8192, 8192)) == Approx(795).epsilon(0.05));
  CHECK(teraflops(product(4096, 4096, 4096)) == Approx(716).epsilon(0.1));
}

TEST_CASE("kernel prices: a product is never faster than its operations, its bytes, or a smaller product",
          "[rehearse]") {
  const KernelRates rates = h100();
  for (const int64_t rows : {1, 100, 128, 1024, 5000, 16384})
    for (const int64_t cols : {64, 768, 1000, 4096})
      for (const int64_t depth : {64, 768, 4096, 16384}) {
        const KernelCost kernel = product(rows, cols, depth);
        const double seconds = kernel_seconds(kernel, rates);
        CHECK(seconds >= static_cast<double>(kernel.flops) / (rates.flops_per_second * rates.product_efficiency));
        CHECK(seconds >= static_cast<double>(kernel.bytes) / rates.bytes_per_second);
        for (const KernelCost& more : {product(rows + 1, cols, depth), product(rows, cols + 1, depth)})
          CHECK(kernel_seconds(more, rates) >= seconds);
      }
}

TEST_CASE("kernel prices: one tile more than a wave costs another wave of small tiles at most", "[rehearse]") {
  // There are 12 x 11 tiles of 256 x 128 on 132 multiprocessors. A depth below 1024 is not split.
  const double full = kernel_seconds(product(12 * 256, 11 * 128, 1000), h100());
  const double more = kernel_seconds(product(12 * 256 + 1, 11 * 128, 1000), h100());
  CHECK(more > 1.05 * full);
  CHECK(more <= 2 * full);
}

TEST_CASE("kernel prices: causal attention on H100 takes the published times", "[rehearse]") {
  struct Row {
    int64_t tokens;
    double head_64, head_128;  // the faster one of cuDNN and FlashAttention 3
  };
  for (const Row& row :
       {Row{1024, 288, 423}, {2048, 371, 521}, {4096, 420, 579}, {8192, 460, 602}, {16384, 473, 616}}) {
    CHECK(teraflops(attention(row.tokens, 64)) == Approx(row.head_64).epsilon(0.2));
    CHECK(teraflops(attention(row.tokens, 128)) == Approx(row.head_128).epsilon(0.12));
  }
}

TEST_CASE("kernel prices: stored scores are slower than fused attention", "[rehearse]") {
  KernelRates stored = h100();
  stored.fused_attention = false;
  CHECK(kernel_seconds(attention(2048, 128), stored) > 2 * kernel_seconds(attention(2048, 128), h100()));
}

TEST_CASE("kernel prices: the slowest of n cards is as slow as the mean of the largest of n normal variables",
          "[rehearse]") {
  CHECK(slowest_factor(0.02, 1) == 1);
  CHECK(slowest_factor(0, 1024) == 1);
  constexpr double kPi = 3.14159265358979;
  for (const int ranks : {2, 4, 8, 64, 1024, 65536}) {
    // The integral of x n density(x) distribution(x)^(n - 1).
    double mean = 0;
    constexpr double kStep = 1e-3;
    for (double x = -8; x < 8; x += kStep)
      mean += kStep * x * ranks * std::exp(-x * x / 2) / std::sqrt(2 * kPi) *
              std::pow(std::erfc(-x / std::sqrt(2.0)) / 2, ranks - 1);
    CHECK(slowest_factor(0.02, ranks) - 1 == Approx(0.02 * mean).epsilon(ranks == 2 ? 0.05 : 0.02));
  }
}

TEST_CASE("NCCL prices: bus bandwidth on 8 H200 follows the published table", "[rehearse]") {
  const GroupSpan node{.ranks = 8, .per_node = 8};
  constexpr int64_t kMiB = 1 << 20;
  CHECK(bus(Op::all_reduce, node, 1 * kMiB) == Approx(40).epsilon(0.15));
  CHECK(bus(Op::all_reduce, node, 16 * kMiB) == Approx(220).epsilon(0.35));
  CHECK(bus(Op::all_reduce, node, 256 * kMiB) == Approx(436).epsilon(0.08));
  CHECK(bus(Op::all_reduce, node, 1024 * kMiB) == Approx(464).epsilon(0.05));
  CHECK(bus(Op::all_gather, node, 1024 * kMiB) == Approx(361).epsilon(0.05));
  CHECK(bus(Op::reduce_scatter, node, 1024 * kMiB) == Approx(363).epsilon(0.05));
  // Four nodes have 365 to 369 GB/s, because rings enter a node through all eight adapters.
  CHECK(bus(Op::all_reduce, {.ranks = 32, .per_node = 8}, 16384 * kMiB) == Approx(365).epsilon(0.05));
  // One rank of each node has one adapter.
  CHECK(bus(Op::all_gather, {.ranks = 4, .per_node = 1}, 1024 * kMiB) == Approx(46).epsilon(0.01));
}

TEST_CASE("NCCL prices: trees bound the latency of many nodes", "[rehearse]") {
  const auto latency = [](int nodes) {
    return nccl_cost(Op::all_reduce, {.ranks = 8 * nodes, .per_node = 8}, 1024, DType::f32, h200_nodes()).latency_ns;
  };
  // The depth is log2: doubling the nodes adds one hop each way.
  CHECK(latency(256) - latency(128) == 2 * 10000);
  CHECK(nccl_cost(Op::all_reduce, {.ranks = 1, .per_node = 1}, 1024, DType::f32, h200_nodes()).wire_ns == 0);
}
