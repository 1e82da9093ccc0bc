// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time of one kernel on a GPU by its shape: matrix products, attention and memory-bound kernels.

#include <cstdint>

#include "engine/device/cost.h"

namespace slipstream::comm {

/// The speed of a card and of the software that computes on it. Rates are per second.
struct KernelRates {
  double flops_per_second = 0;      // the peak of the matrix units
  double fp8_flops_per_second = 0;  // the peak for the products of layers; 0: they have the type of the others
  double bytes_per_second = 0;      // of the memory, as a large copy reaches it
  int64_t multiprocessors = 0;      // 0: kernels fill the card, whatever their shape
  double product_efficiency = 1;    // the share of the peak in the inner loop of a product with the largest tile
  double fp8_efficiency = 1;
  double depth_overhead = 0;        // the start and end of a tile, in elements of depth
  double attention_efficiency = 1;  // the share of the peak, for the forward pass of long sequences with heads of 128
  bool fused_attention = true;      // false: scores are stored, as matrices of all queries and keys
  double moved_bytes_factor = 1;    // the bytes of memory-bound kernels, relative to those of this program
};

/// Pure. The seconds of a kernel without its launch: the larger one of the times of its arithmetic and its memory.
///
/// product  tiles of 64 to 256 rows and columns, in waves over the multiprocessors; the depth may be split. The fastest
///          tile counts. A smaller tile reads more operands per result, so its inner loop is slower.
/// scores   the efficiency grows with the rows to attention_efficiency; it is half of it at 480 rows (figures of
/// FlashAttention 3)
/// moved    bytes at the rate of memory
double kernel_seconds(const KernelCost& kernel, const KernelRates& rates);

/// Pure. How much longer the slowest of `ranks` cards computes than a mean card (>= 1), if the speeds of cards have the
/// relative standard deviation `spread`: every step waits for that card. The mean of the largest of n normal variables
/// is the quantile at 1 - 0.625 / (n + 0.25) (Blom 1958); the quantile is Hastings' approximation (Abramowitz and
/// Stegun 26.2.23, error below 0.0005).
double slowest_factor(double spread, int ranks);

}  // namespace slipstream::comm
