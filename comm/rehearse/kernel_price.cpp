// SPDX-License-Identifier: Apache-2.0
// Products are waves of tiles, attention has a ramp by rows, and everything else is priced by its bytes.

#include "comm/rehearse/kernel_price.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/units.h"

namespace slipstream::comm {
namespace {

struct Tile {
  int64_t rows, cols;
};
constexpr Tile kTiles[] = {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}};
constexpr int64_t kSplits[] = {1, 2, 4, 8};  // of the depth
constexpr int64_t kLeastDepth = 512;         // of one part

/// The speed of a tile's inner loop relative to 256 x 128. The operands per result grow with 1/rows + 1/cols. A tile of
/// 128 x 128 reaches 0.92 of a large one, and 64 x 64 reaches 0.69.
double relative_speed(const Tile& tile) {
  constexpr double kOperands = 32, kLargest = 1 + kOperands * (1.0 / 256 + 1.0 / 128);
  return kLargest / (1 + kOperands * (1.0 / static_cast<double>(tile.rows) + 1.0 / static_cast<double>(tile.cols)));
}

struct Product {
  int64_t rows, cols, depth, count;
};

double seconds_of(const Product& product, double flops_per_second, const KernelRates& rates) {
  if (flops_per_second <= 0) return 0;
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  if (rates.multiprocessors == 0)
    return 2.0 * real(product.rows) * real(product.cols) * real(product.depth) * real(product.count) / flops_per_second;
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles)
    for (const int64_t split : kSplits) {
      if (split > 1 && product.depth < split * kLeastDepth) break;
      const int64_t blocks =
          product.count * split * ceil_div(product.rows, tile.rows) * ceil_div(product.cols, tile.cols);
      const double waves = real(ceil_div(blocks, rates.multiprocessors));
      const double per_block = 2.0 * real(tile.rows) * real(tile.cols) *
                               (real(product.depth) / real(split) + rates.depth_overhead) /
                               (flops_per_second / real(rates.multiprocessors) * relative_speed(tile));
      // The parts of a split depth are written and added as float32.
      const double added =
          split == 1 || rates.bytes_per_second <= 0
              ? 0
              : 8.0 * real(split) * real(product.count * product.rows * product.cols) / rates.bytes_per_second;
      best = std::min(best, waves * per_block + added);
    }
  return best;
}

double memory_seconds(double bytes, const KernelRates& rates) {
  return rates.bytes_per_second > 0 ? bytes / rates.bytes_per_second : 0;
}

double fused_seconds(const KernelCost& kernel, const KernelRates& rates) {
  // The speed at 480 rows is a half; a head of 64 has 0.77 of the speed of one of 128; the gradient has 0.85 of the
  // speed of the forward pass (FlashAttention 3 on H100, figures 5 and 6).
  constexpr double kRamp = 480, kHead = 55, kBackward = 0.85;
  const auto rows = static_cast<double>(kernel.rows), head = static_cast<double>(kernel.depth);
  const double efficiency = rates.attention_efficiency * rows / (rows + kRamp) * (head / (head + kHead)) *
                            ((128 + kHead) / 128) * (kernel.backward ? kBackward : 1);
  const double filled = rates.multiprocessors > 0
                            ? std::min(1.0, static_cast<double>(kernel.count * ceil_div(kernel.rows, int64_t{128})) /
                                                static_cast<double>(rates.multiprocessors))
                            : 1;
  return static_cast<double>(kernel.flops) / (rates.flops_per_second * efficiency * filled);
}

/// Batched products, and passes over stored scores of two bytes. The forward pass writes the scores, masks and
/// normalises them, drops some with a mask of one byte, and reads them. The backward pass does the reverse.
double stored_seconds(const KernelCost& kernel, const KernelRates& rates) {
  constexpr double kForwardBytes = 13, kBackwardBytes = 15;
  const double rate = rates.flops_per_second * rates.product_efficiency;
  const double pair = seconds_of({kernel.rows, kernel.cols, kernel.depth, kernel.count}, rate, rates) +
                      seconds_of({kernel.rows, kernel.depth, kernel.cols, kernel.count}, rate, rates);
  const double scores =
      static_cast<double>(kernel.rows) * static_cast<double>(kernel.cols) * static_cast<double>(kernel.count);
  return pair * (kernel.backward ? 2 : 1) +
         memory_seconds(scores * (kernel.backward ? kBackwardBytes : kForwardBytes), rates);
}

}  // namespace

double kernel_seconds(const KernelCost& kernel, const KernelRates& rates) {
  const double moved = memory_seconds(static_cast<double>(kernel.bytes), rates);
  switch (kernel.kind) {
    case KernelKind::moved:
      return moved * rates.moved_bytes_factor;
    case KernelKind::product: {
      const bool fp8 = rates.fp8_flops_per_second > 0 && kernel.in_layer;
      const double rate =
          fp8 ? rates.fp8_flops_per_second * rates.fp8_efficiency : rates.flops_per_second * rates.product_efficiency;
      KernelRates own = rates;
      if (fp8) own.depth_overhead *= 2;  // takes the same time
      const double computed = seconds_of({kernel.rows, kernel.cols, kernel.depth, kernel.count}, rate, own);
      // Activations and their gradients are read as bf16 and written as fp8; weights are cast once in a step.
      const double cast = fp8 ? memory_seconds(3.0 * static_cast<double>(kernel.rows * kernel.depth), rates) : 0;
      return std::max(computed, moved) + cast;
    }
    case KernelKind::scores:
      if (kernel.rows == 0 || kernel.cols == 0 || rates.flops_per_second <= 0) return moved;
      return std::max(rates.fused_attention ? fused_seconds(kernel, rates) : stored_seconds(kernel, rates), moved);
  }
  return moved;
}

double slowest_factor(double spread, int ranks) {
  if (ranks <= 1 || spread <= 0) return 1;
  const double t = std::sqrt(-2 * std::log(0.625 / (ranks + 0.25)));
  const double quantile =
      t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  return 1 + spread * quantile;
}

}  // namespace slipstream::comm
